"""Which requirements each wait protects: those that nothing would order without it.

Only a wait on the shortest path of a requirement can be one that it needs. Whether there is another
path is asked in a matrix with a row for where each wait ends and a column for where each begins,
since between waits a path follows free edges, whose paths are known. The waits are left out by
halves: what is joined for one half serves all waits of the other, so that w waits take w · log w
additions instead of w².
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .paths import FAR, HOP, Weights, reachable, with_empty

Edge = tuple[int, int, int]  # source, target, distance
Ints = npt.NDArray[np.int64]
Distances = npt.NDArray[np.signedinteger[Any]]
_NEAR = 1000
"""Distances below this are added in 16 bits: with eight times that for what is not there, the sum
of three numbers fits, and no sum of it and of paths back in time is taken for a distance."""
_CHUNK = 2048  # gates whose paths are followed at once


def broken_without(
    free: Weights, paths: Weights, waits: Sequence[Edge], gates: Sequence[Edge]
) -> list[list[int]]:
    """For each wait, the gates by number that no path orders once it is removed.

    `free` are the paths of the free edges, `paths` those of all waits too, which order every gate.
    """
    found: list[list[int]] = [[] for _ in waits]
    if not waits or not gates:
        return found
    alike, member = np.unique(np.array(gates, dtype=np.int64), axis=0, return_inverse=True)
    members = _members(member.reshape(-1), len(alike))
    open_gates = np.flatnonzero(free[alike[:, 0], alike[:, 1]] >= (alike[:, 2] + 1) * HOP)
    ask = _Detours.of(free, paths, waits, alike[open_gates])
    suspects: list[list[int]] = [[] for _ in waits]
    for gate, wait in ask.followed():
        suspects[wait].append(gate)
    for wait, joined in ask.without_each(ask.between, range(len(waits))):
        for gate in ask.broken(wait, np.array(suspects[wait], dtype=np.int64), joined):
            found[wait] += members[int(open_gates[gate])]
    return [sorted(numbers) for numbers in found]


def _members(kind: Ints, kinds: int) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(kinds)]
    for number, each in enumerate(kind.tolist()):
        members[each].append(number)
    return members


def _distances(paths: Weights, far: int, dtype: npt.DTypeLike) -> Distances:
    """Of paths, without their hops; `far` where there is none."""
    found: Distances = np.where(reachable(paths), paths // HOP, far).astype(dtype)
    return found


@dataclass(frozen=True)
class _Detours:
    """The ways from gates to waits, between waits, and on; free edges only, unless it says so.

    Of every way the distance alone, in numbers as narrow as they may be: most of the time goes into
    reading them.
    """

    far: int
    source: Ints  # of each gate
    most: Distances  # a path of more than this distance is too far
    steps: Distances  # the distance of each wait
    to: Distances  # (gate, wait): to the end of the wait, which comes first
    onward: Distances  # (gate, wait): from the end of the wait, which comes last
    between: Distances  # (wait, wait): from the end of one to the beginning of another
    rest: Distances  # (gate, wait): from the end of the wait, over all edges

    @staticmethod
    def of(free: Weights, paths: Weights, waits: Sequence[Edge], gates: Ints) -> _Detours:
        begins, ends, distance = np.array(waits, dtype=np.int64).T
        source, target, most = gates.T
        known = np.concatenate([free[reachable(free)] // HOP, paths[reachable(paths)] // HOP])
        longest = np.abs(np.concatenate([known, distance, most])).max()
        far, dtype = (_NEAR * 8, np.int16) if longest < _NEAR else (FAR, np.int64)
        reach = _distances(with_empty(free), far, dtype)
        whole = _distances(with_empty(paths), far, dtype)
        steps = distance.astype(dtype)
        return _Detours(
            far=far,
            source=source,
            most=most.astype(dtype),
            steps=steps,
            to=reach[source][:, begins] + steps,
            onward=reach[ends][:, target].T.copy(),
            between=reach[ends][:, begins],
            rest=whole[ends][:, target].T.copy(),
        )

    def followed(self) -> Iterator[tuple[int, int]]:
        """(gate, wait) for each wait on the shortest path of each gate."""
        for start in range(0, len(self.source), _CHUNK):
            gates = np.arange(start, min(start + _CHUNK, len(self.source)))
            reached = (self.to[gates] + self.rest[gates]).argmin(axis=1)
            while len(gates):
                yield from zip(gates.tolist(), reached.tolist(), strict=True)
                further = self.onward[gates, reached] > self.rest[gates, reached]
                gates, reached = gates[further], reached[further]
                ways = self.between[reached] + self.steps + self.rest[gates]
                reached = ways.argmin(axis=1)

    def broken(self, wait: int, gates: Ints, joined: Distances) -> Iterator[int]:
        """Those of some gates that nothing orders without a wait; `joined` knows the others."""
        to, onward = self.to[gates], self.onward[gates]
        to[:, wait] = onward[:, wait] = self.far
        near = (to + onward).min(axis=1, initial=self.far) <= self.most[gates]
        known: dict[int, Distances] = {}  # gates of one source share the ways to the waits
        for place in np.flatnonzero(~near).tolist():
            gate = int(gates[place])
            source = int(self.source[gate])
            if source not in known:
                known[source] = (to[place, :, None] + joined).min(axis=0) + self.steps
            if (known[source] + onward[place]).min() > self.most[gate]:
                yield gate

    def without_each(
        self, joined: Distances, left: Sequence[int]
    ) -> Iterator[tuple[int, Distances]]:
        """Each wait of `left` with the paths between waits over all others of them."""
        if len(left) == 1:
            yield left[0], joined
            return
        middle = len(left) // 2
        for part, others in ((left[:middle], left[middle:]), (left[middle:], left[:middle])):
            paths = joined.copy()
            over = np.empty_like(paths)
            for wait in others:
                np.add(paths[:, wait, None], paths[wait] + self.steps[wait], out=over)
                np.minimum(paths, over, out=paths)
            yield from self.without_each(paths, part)
