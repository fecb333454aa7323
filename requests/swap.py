"""KV blocks in host memory, of requests that gave way to others and are to resume.

Whoever gives way keeps what is in place: its full blocks are copied out by a step, and their keys
go from the request (`OWNER`) to the copy (`SWAP`) and back to the pool. When it resumes, fresh
blocks are filled from the host by the step in which its first row may run, or some steps before it.
When each may happen follows from the leases of the plan. What finds no room on the host is computed
again, as without it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..graph.node import OWNER
from .pools import KeyPool, Leases

SWAP = "swap"
"""The class of users of a keyed state that copies its blocks to the host and back."""


class Swaps(NamedTuple):
    """Copies of a step: `out` of (KV block, host block), then `into` of (host block, KV block)."""

    out: tuple[tuple[int, int], ...] = ()
    into: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Kept:
    """One request's blocks on the host; its KV blocks, too, as long as they are not copied."""

    host: list[int]
    device: list[int]
    step: int  # that copies them out


class SwapSpace:
    """Who has which host blocks, and what each step copies. `blocks`: how many there are; 0: none.

    `pool`, `leases` are those of the KV blocks, `host_leases` those of the host blocks. KV blocks
    in `keep` are worth keeping where they are, too.
    """

    def __init__(
        self,
        blocks: int,
        pool: KeyPool,
        leases: Leases,
        host_leases: Leases,
        keep: Container[int] = (),
    ) -> None:
        self.host = KeyPool(range(blocks), host_leases)
        self._pool, self._keep = pool, keep
        self._out_after = leases.get((OWNER, SWAP), 0)
        self._back_after = max(0, leases.get((SWAP, OWNER), 0))
        self._kept: dict[int, _Kept] = {}  # by request
        self._resumes: dict[int, int] = {}  # by request: the first step that may have its row
        self._swaps = Swaps()

    def begin(self, step: int) -> None:
        """Copy out, in this step, whatever the plan lets it. Raises nothing."""
        for kept in self._kept.values():
            if kept.device and kept.step <= step:
                self._copy_out(kept, step)

    def take(self) -> Swaps | None:
        """The copies of the step that is scheduled now, once; None if there are none."""
        swaps, self._swaps = self._swaps, Swaps()
        return swaps if swaps != Swaps() else None

    def has_room(self, blocks: int, step: int) -> bool:
        """Whether so many blocks could be kept from this step on."""
        return 0 < blocks <= self.host.available(step)

    def leave(self, uid: int, blocks: Sequence[int], last_step: int, step: int) -> None:
        """Take over the KV blocks of a request last scheduled in `last_step`, to copy them out.

        There must be room for them.
        """
        host = self.host.grant(len(blocks), step)
        assert host is not None, "has_room() said so"
        # Whoever shared a block until a moment ago may have used it in a later step.
        at = max(step, last_step + self._out_after, self._pool.ready(blocks, SWAP))
        self._pool.hand_over(blocks, last_step, OWNER, SWAP, at)
        kept = self._kept[uid] = _Kept(host, list(blocks), at)
        if at == step:
            self._copy_out(kept, step)

    def blocks_of(self, uid: int) -> int:
        """How many full blocks of a request are on the host, from its first on."""
        kept = self._kept.get(uid)
        return 0 if kept is None else len(kept.host)

    def is_leaving(self, uid: int) -> bool:
        """Whether a request's blocks are still to be copied out."""
        return uid in self._kept and bool(self._kept[uid].device)

    @property
    def leaving(self) -> list[int]:
        """KV blocks that are still to be copied out."""
        return [block for kept in self._kept.values() for block in kept.device]

    def come_back(self, uid: int, first: int, blocks: Sequence[int], step: int) -> None:
        """Fill `blocks` from the host in this step: those of a request from its `first` on.

        All its host blocks are free again.
        """
        kept = self._kept.pop(uid)
        pairs = zip(kept.host[first:], blocks, strict=False)
        self._swaps = self._swaps._replace(into=(*self._swaps.into, *pairs))
        self.host.release(kept.host, step)
        ready = step + self._back_after if blocks else step
        self._pool.hand_over(blocks, step, SWAP, OWNER, ready)
        self._resumes[uid] = ready

    def is_awaited(self, uid: int, step: int) -> bool:
        """Whether a request's blocks are still being filled for a row of this step."""
        return self._resumes.get(uid, step) > step

    def is_filling(self, uid: int, step: int) -> bool:
        """Whether a request's blocks are filled in this step, or are for a later row."""
        ready = self._resumes.get(uid, -1)
        return ready > step or (ready == step and not self._back_after)

    def any_awaited(self, step: int) -> bool:
        """Whether anybody's are, or are still to be copied out."""
        return bool(self.leaving) or any(ready > step for ready in self._resumes.values())

    def drop(self, uid: int) -> None:
        """The request ends, or is computed anew."""
        self._resumes.pop(uid, None)
        kept = self._kept.pop(uid, None)
        if kept is not None:
            self._pool.release(kept.device, kept.step, users=SWAP, keep=self._keep)
            self.host.release(kept.host, kept.step)

    def drop_all(self) -> None:
        """Nothing that is on the host counts any more."""
        self._swaps = Swaps()
        for uid in list(self._kept):
            self.drop(uid)
        self._resumes.clear()

    def check_conservation(self) -> None:
        """Every host block is in one place. Raises `PoolError`."""
        self.host.check_conservation()
        held = {block for kept in self._kept.values() for block in kept.host}
        assert self.host.held == held, "host blocks leaked"

    def _copy_out(self, kept: _Kept, step: int) -> None:
        pairs = zip(kept.device, kept.host, strict=True)
        self._swaps = self._swaps._replace(out=(*self._swaps.out, *pairs))
        self._pool.release(kept.device, step, users=SWAP, keep=self._keep)
        kept.device, kept.step = [], step
