"""The routers that Ray has made in this process."""

from __future__ import annotations

from typing import Protocol


class Routes(Protocol):
    """A router, as a fleet sees it."""

    @property
    def live(self) -> int:
        """How many replicas take work, as far as is known."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether one of them has room for all that was sent to it."""
        ...

    def lost(self, attempt: str) -> None:
        """The replica that has this work does not answer, or serves no more."""
        ...

    def heard(self, attempt: str) -> None:
        """It has answered."""
        ...


ROUTERS: dict[str, Routes] = {}
"""By the application whose requests they route."""
