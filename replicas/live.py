"""The routers that Ray has made in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Routes(Protocol):
    """A router, as a fleet sees it."""

    @property
    def curr_replicas(self) -> Mapping[Any, Any]:
        """The replicas that it chooses among."""
        ...


ROUTERS: dict[str, Routes] = {}
"""By the application whose requests they route."""
