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

import numpy as np
import numpy.typing as npt

from .paths import FAR, HOP, Weights, weight, with_empty

Edge = tuple[int, int, int]  # source, target, distance
Ints = npt.NDArray[np.int64]
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
    for wait, joined in _without_each(ask.between, waits, range(len(waits))):
        for gate in ask.broken(wait, np.array(suspects[wait], dtype=np.int64), joined):
            found[wait] += members[int(open_gates[gate])]
    return [sorted(numbers) for numbers in found]


def _members(kind: Ints, kinds: int) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(kinds)]
    for number, each in enumerate(kind.tolist()):
        members[each].append(number)
    return members


@dataclass(frozen=True)
class _Detours:
    """The ways from gates to waits, between waits, and on; free edges only, unless it says so."""

    source: Ints  # of each gate
    limit: Weights  # a path of at least this weight is too far
    steps: Weights  # the weight of each wait
    to: Weights  # (gate, wait): to the end of the wait, which comes first
    onward: Weights  # (gate, wait): from the end of the wait, which comes last
    between: Weights  # (wait, wait): from the end of one to the beginning of another
    rest: Weights  # (gate, wait): from the end of the wait, over all edges

    @staticmethod
    def of(free: Weights, paths: Weights, waits: Sequence[Edge], gates: Ints) -> _Detours:
        begins, ends, distance = np.array(waits, dtype=np.int64).T
        source, target, most = gates.T
        reach, whole = with_empty(free), with_empty(paths)
        steps = distance * HOP + 1
        return _Detours(
            source=source,
            limit=(most + 1) * HOP,
            steps=steps,
            to=reach[source][:, begins] + steps,
            onward=reach[ends][:, target].T,
            between=reach[ends][:, begins],
            rest=whole[ends][:, target].T,
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

    def broken(self, wait: int, gates: Ints, joined: Weights) -> Iterator[int]:
        """Those of some gates that nothing orders without a wait; `joined` knows the others."""
        if not len(gates):
            return
        others = np.arange(len(self.steps)) != wait
        near = self.to[gates][:, others] + self.onward[gates][:, others]
        gates = gates[(near >= self.limit[gates, None]).all(axis=1)]
        between = joined[others][:, others] + self.steps[others]
        known: dict[int, Weights] = {}  # gates of one source share the ways to the waits
        for gate in gates.tolist():
            source = int(self.source[gate])
            if source not in known:
                first = self.to[gate, others, None]
                known[source] = (first + between).min(axis=0, initial=FAR)
            if (known[source] + self.onward[gate, others] >= self.limit[gate]).all():
                yield gate


def _without_each(
    joined: Weights, waits: Sequence[Edge], left: Sequence[int]
) -> Iterator[tuple[int, Weights]]:
    """Each wait of `left` with the paths between waits over all others of them."""
    if len(left) == 1:
        yield left[0], joined
        return
    middle = len(left) // 2
    for part, others in ((left[:middle], left[middle:]), (left[middle:], left[:middle])):
        paths = joined.copy()
        for wait in others:
            over = paths[:, wait, None] + (paths[wait] + weight(waits[wait][2]))
            np.minimum(paths, over, out=paths)
        yield from _without_each(paths, waits, part)
