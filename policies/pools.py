"""Pools of reusable keys (KV blocks, request rows), safe under overlap.

Releasing a key on the host does not touch what it names: steps already scheduled may still read
and write there. So a key comes back with the last step that was scheduled with it, and may be
granted at step j only if the graph orders that step's accesses before those of step j. The
distance that takes is derived from the plan (`graph.pools.reuse_distance`); on one stream it is 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..graph.errors import StepweaveError


class PoolError(StepweaveError):
    """A key was released twice, or by someone who does not hold it."""

    code = "SW-POOL"


class KeyPool:
    """Grants and takes back the keys 0 … n−1 (or any given ones), each in one hand at a time."""

    def __init__(self, keys: Iterable[int], reuse_distance: int) -> None:
        if reuse_distance < 1:
            raise ValueError(f"reuse_distance must be at least 1, not {reuse_distance}")
        self._free = deque(keys)
        self._all = frozenset(self._free)
        self._held: set[int] = set()
        self._quarantine: deque[tuple[int, int]] = deque()  # (first step to grant at, key)
        self._distance = reuse_distance

    def __len__(self) -> int:
        return len(self._all)

    def available(self, step: int) -> int:
        """How many keys may be granted at `step`."""
        self._mature(step)
        return len(self._free)

    def grant(self, count: int, step: int) -> list[int] | None:
        """`count` keys for use from `step` on, or None if there are not so many."""
        self._mature(step)
        if count > len(self._free):
            return None
        keys = [self._free.popleft() for _ in range(count)]
        self._held.update(keys)
        return keys

    def release(self, keys: Iterable[int], last_step: int) -> None:
        """Take keys back from an owner last scheduled in `last_step` (committed or not)."""
        for key in keys:
            if key not in self._held:
                raise PoolError(f"key {key} was released, but nobody holds it")
            self._held.remove(key)
            self._quarantine.append((last_step + self._distance, key))

    def check_conservation(self) -> None:
        """Every key is in exactly one place. Raises `PoolError` otherwise."""
        places = [*self._free, *self._held, *(key for _, key in self._quarantine)]
        if len(places) != len(set(places)) or set(places) != self._all:
            raise PoolError(f"{len(places)} keys accounted for, of {len(self._all)}")

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def _mature(self, step: int) -> None:
        # Not sorted: release order is nearly step order, and a few late keys do no harm.
        waiting: deque[tuple[int, int]] = deque()
        while self._quarantine:
            ready, key = self._quarantine.popleft()
            if ready <= step:
                self._free.append(key)
            else:
                waiting.append((ready, key))
        self._quarantine = waiting
