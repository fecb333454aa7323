"""Keys that are granted too early: before the plan has their old users' accesses behind it.

Whoever hands keys out goes by the leases of the plan. Here nothing is known of leases: of each key
it is noted who had it until which step, and when it is granted, every access that the old users
may have made in that step is compared by the clocks with every one that the new ones may make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from ...executors.errors import ContractViolation
from ...graph.step_graph import StepGraph
from ...requests.pools import Change, KeyPool
from .clocks import Clocks

Accesses = tuple[tuple[str, bool], ...]  # (op, whether it writes), of one class and state


class Grants:
    """What became of the keys of one pool."""

    def __init__(self, graph: StepGraph, clocks: Clocks, keys: str) -> None:
        self._clocks, self._keys, self._ops = clocks, keys, graph.vertices
        self._until: dict[int, dict[str, int]] = {}  # key -> class -> the last step that had it
        self._uses: dict[str, dict[str, Accesses]] = {}  # state -> class -> its accesses
        for state, datum in graph.states.items():
            if datum.keys == keys:
                uses = self._uses[state] = {}
                for vertex in graph.vertices.values():
                    writes = state in vertex.op.writes
                    if writes or any(read.name == state for read in vertex.op.reads):
                        users = vertex.op.class_of(state)
                        uses[users] = (*uses.get(users, ()), (vertex.name, writes))

    def told(self, change: Change) -> None:
        """A key changes hands.

        Raises `ContractViolation` (`SW-KEY`) if it is granted to users while old ones may still
        access what it names.
        """
        key, users, step, granted = change
        if not granted:
            known = self._until.setdefault(key, {})
            known[users] = max(step, known.get(users, step))
            return
        for old, last in self._until.get(key, {}).items():
            for state, before, after in self._conflicts(old, users):
                if not self._in_order(before, last, after, step):
                    raise ContractViolation(
                        "SW-KEY",
                        self._ops[after],
                        state,
                        step,
                        f"gets key {key} of {self._keys!r} for {users!r} too early: {before!r} of "
                        f"step {last} may still touch {state!r} there for {old!r}. Grant keys by "
                        "the leases of the plan",
                    )

    def _in_order(self, before: str, last: int, after: str, step: int) -> bool:
        """Whether the plan, and the serial program, have the old users' access first."""
        old, new = (
            (at + self._ops[op].offset, self._ops[op].position)
            for op, at in ((before, last), (after, step))
        )
        return old < new and self._clocks.before(before, last, after, step)

    def _conflicts(self, old: str, new: str) -> Iterator[tuple[str, str, str]]:
        for state, uses in self._uses.items():
            for before, wrote in uses.get(old, ()):
                for after, writes in uses.get(new, ()):
                    if wrote or writes:
                        yield state, before, after


def watched(graph: StepGraph, clocks: Clocks, states: Iterable[Any]) -> list[KeyPool]:
    """The pools that hand out keys of the graph's states, each watched from now on."""
    found = []
    for state in states:
        for keys, pool in getattr(state, "pools", {}).items():
            assert isinstance(pool, KeyPool), "a state's `pools` are pools of keys, by name"
            # A partial, so that guards do not take what watches for a part of the state.
            pool.watch = partial(Grants(graph, clocks, keys).told)
            found.append(pool)
    return found
