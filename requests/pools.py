"""Pools of reusable keys (KV blocks, request rows), safe under overlap.

Releasing a key on the host does not touch what it names: steps already scheduled may still read
and write there. So a key comes back with the last step that was scheduled with it, and may be
granted at step j only if the graph orders that step's accesses before those of step j. The
distance that takes is a lease of the plan (`graph.planner.leases`), by the class of who had the key
and of who gets it; on one stream it is 1. Each later user counts with each earlier one, since
those who only read hand nothing on.

A key may have several users who only read what it names. It is released when the last of them
gives it back, and the rule counts the last step of any of them. What is worth keeping stays
*idle*: it can be shared again at once, and is evicted, least recently released first, when a
grant finds nothing free.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import NamedTuple

from ..graph.errors import StepweaveError
from ..graph.node import OWNER

Leases = Mapping[tuple[str, str], int]
"""After how many steps a key may pass from one class of users to another; none: they only read."""


def one_class(steps: int = 1) -> Leases:
    """Leases where all users are of one class. Raises nothing."""
    return {(OWNER, OWNER): steps}


class PoolError(StepweaveError):
    """A key was released twice, or by someone who does not hold it."""

    code = "SW-POOL"


class Change(NamedTuple):
    """A key is granted to users of a class, from `step` on; or they had it in `step` at last."""

    key: int
    users: str
    step: int
    granted: bool


class KeyPool:
    """Grants and takes back the keys 0 … n−1 (or any given ones); each is in one place at a time.

    The places: free; held by its users; quarantined until its last step's accesses are ordered
    before those of a new owner; idle. `evicted` is told of each kept key that a grant takes.
    Raises `ValueError` for a class that would hand its own keys on within a step.
    """

    watch: Callable[[Change], None] | None = None
    """Who is told of every key that changes hands, as checking mode is."""

    def __init__(
        self,
        keys: Iterable[int],
        leases: Leases,
        *,
        evicted: Callable[[int], None] | None = None,
    ) -> None:
        for (source, target), steps in leases.items():
            if source == target and steps < 1:
                raise ValueError(f"a lease from {source!r} to itself is at least 1, not {steps}")
        self._free = deque(keys)
        self._all = frozenset(self._free)
        self._users: dict[int, int] = {}
        self._quarantine: dict[int, bool] = {}  # key -> whether it is worth keeping
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._ready: dict[int, dict[str, int]] = {}  # key -> class -> first step to grant at
        self._next: dict[str, list[tuple[str, int]]] = {}  # class -> who may have it, and when
        for (source, target), steps in (leases or one_class()).items():
            self._next.setdefault(source, []).append((target, steps))
        self._evicted = evicted

    def __len__(self) -> int:
        return len(self._all)

    def available(self, step: int, *, without: Collection[int] = (), users: str = OWNER) -> int:
        """How many keys may be granted at `step`, if nobody takes those in `without`."""
        self._mature(step)
        if users != OWNER:
            loose = (key for key in (*self._free, *self._idle) if key not in without)
            return sum(self._is_ready(key, users, step) for key in loose)
        return len(self._free) + len(self._idle) - sum(key in self._idle for key in without)

    def resting(self, *, without: Collection[int] = ()) -> int:
        """How many released keys still wait for the steps of their users."""
        return len(self._quarantine) - sum(key in self._quarantine for key in without)

    def grant(self, count: int, step: int, users: str = OWNER) -> list[int] | None:
        """`count` keys for use from `step` on, or None if there are not so many."""
        if count > self.available(step, users=users):
            return None
        keys = [self._take(step, users) for _ in range(count)]
        for key in keys:
            self._users[key] = 1
            if self.watch is not None:
                self.watch(Change(key, users, step, granted=True))
        return keys

    def share(self, keys: Iterable[int]) -> None:
        """Add a user to keys that are held or kept, who only reads what they name.

        Raises `PoolError` for a key that is neither.
        """
        for key in keys:
            kept = self._quarantine.get(key, False) or key in self._idle
            if not kept and key not in self._users:
                raise PoolError(f"key {key} cannot be shared: no request holds or keeps it")
            self._quarantine.pop(key, None)
            self._idle.pop(key, None)
            self._users[key] = self._users.get(key, 0) + 1

    def release(
        self,
        keys: Iterable[int],
        last_step: int,
        *,
        keep: Container[int] = (),
        users: str = OWNER,
    ) -> None:
        """Take keys back from a user last scheduled in `last_step` (committed or not).

        Those in `keep` stay idle when their last user is gone. Raises `PoolError`.
        """

        for key in keys:
            holders = self._users.get(key, 0)
            if not holders:
                raise PoolError(f"key {key} was released, but no request holds it")
            self._had(key, users, last_step)
            if holders > 1:
                self._users[key] = holders - 1
                continue
            del self._users[key]
            self._quarantine[key] = key in keep

    def hand_over(
        self, keys: Iterable[int], last_step: int, users: str, then: str, step: int
    ) -> None:
        """Held keys pass from users last scheduled in `last_step` to others, from `step` on.

        Raises `PoolError` for a key that has not just one holder, or not so soon.
        """
        for key in keys:
            self._had(key, users, last_step)
            if self._users.get(key, 0) != 1 or not self._is_ready(key, then, step):
                raise PoolError(f"key {key} cannot pass from {users!r} to {then!r} in step {step}")
            if self.watch is not None:
                self.watch(Change(key, then, step, granted=True))

    def ready(self, keys: Iterable[int], then: str) -> int:
        """The first step from which all these keys may pass to users of that class."""
        return max((self._ready_for(key, then) for key in keys), default=0)

    def keep_nothing(self) -> None:
        """What released keys name is worth nothing any more: they rest or are free like others."""
        for key, kept in self._quarantine.items():
            if kept:
                self._quarantine[key] = False
                self._forget(key)
        while self._idle:
            self._free.append(self._evict())

    def check_conservation(self) -> None:
        """Every key is in exactly one place. Raises `PoolError` otherwise."""
        places = [*self._free, *self._users, *self._quarantine, *self._idle]
        if len(places) != len(set(places)) or set(places) != self._all:
            raise PoolError(f"{len(places)} keys accounted for, of {len(self._all)}")

    def users(self, key: int) -> int:
        """How many hold the key now."""
        return self._users.get(key, 0)

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._users)

    @property
    def kept(self) -> frozenset[int]:
        """Keys without a user whose contents are worth keeping."""
        return frozenset(self._idle) | {key for key, keep in self._quarantine.items() if keep}

    def _had(self, key: int, users: str, last_step: int) -> None:
        """Users of that class had the key in `last_step` at last: when may whom have it?"""
        ready = self._ready.setdefault(key, {})
        for target, steps in self._next.get(users, ()):
            ready[target] = max(last_step + steps, ready.get(target, 0))
        if self.watch is not None:
            self.watch(Change(key, users, last_step, granted=False))

    def _is_ready(self, key: int, users: str, step: int) -> bool:
        return self._ready_for(key, users) <= step

    def _ready_for(self, key: int, users: str) -> int:
        return self._ready.get(key, {}).get(users, 0)

    def _take(self, step: int, users: str) -> int:
        """A key that is free, else the idle one that was released first; one must be ready."""
        if users == OWNER:  # as all that is free or idle is for them
            return self._free.popleft() if self._free else self._evict()
        for found in (self._free, self._idle):
            for key in found:
                if self._is_ready(key, users, step):
                    if key in self._idle:
                        del self._idle[key]
                        self._forget(key)
                    else:
                        self._free.remove(key)
                    return key
        raise AssertionError("available() said so")

    def _evict(self) -> int:
        key, _ = self._idle.popitem(last=False)
        self._forget(key)
        return key

    def _forget(self, key: int) -> None:
        if self._evicted is not None:
            self._evicted(key)

    def _mature(self, step: int) -> None:
        for key in [key for key in self._quarantine if self._is_ready(key, OWNER, step)]:
            if self._quarantine.pop(key):
                self._idle[key] = None
            else:
                self._free.append(key)
