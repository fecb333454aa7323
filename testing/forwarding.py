"""A context around another, for what stands between an op and its executor."""

from __future__ import annotations

from typing import Any

from ..graph.node import OpContext


class Forwarding:
    """An `OpContext` that hands on to `inner` whatever a subclass does not define itself."""

    __slots__ = ("_inner",)

    def __init__(self, inner: OpContext) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
