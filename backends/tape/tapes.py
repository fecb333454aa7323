"""Recordings on a CPU."""

from __future__ import annotations

from .arrange import Pool
from .recording import Tape


class Tapes:
    """Makes them, and has the memory in which they work."""

    def __init__(self) -> None:
        self.pools: dict[str, Pool] = {}

    def of(self, pool: str) -> Tape:
        """A new one, which works in the memory of all of its pool."""
        return Tape(self.pools.setdefault(pool, Pool()))
