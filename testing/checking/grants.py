"""Keys that are granted too early: before the plan has their old users' accesses behind it.

Whoever hands keys out goes by the leases of the plan. Here nothing is known of leases: of each key
it is noted who had it until which step, and when it is granted, every access that the old users
may have made in that step is compared by the clocks with every one that the new ones may make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from ...executors.errors import ContractViolation
from ...graph.step_graph import StepGraph, Vertex
from ...requests.pools import Change, KeyPool
from .legs import Legs

Accesses = tuple[tuple[Vertex, bool], ...]  # (op, whether it writes), of one class and state
Uses = Mapping[str, Mapping[str, Accesses]]  # state -> class -> its accesses


class Grants:
    """What became of the keys of one pool."""

    def __init__(self, legs: Legs, keys: str) -> None:
        self._legs, self._keys = legs, keys
        self._until: dict[int, dict[str, int]] = {}  # key -> class -> the last step that had it
        self._uses: dict[int, Uses] = {}  # of each plan

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
            for state, before, at, after in self._conflicts(old, last, users, step):
                ends = before, at, after.name, step
                if not (self._legs.serially(*ends) and self._legs.before(*ends)):
                    raise ContractViolation(
                        "SW-KEY",
                        after,
                        state,
                        step,
                        f"gets key {key} of {self._keys!r} for {users!r} too early: {before!r} of "
                        f"step {at} may still touch {state!r} there for {old!r}. Grant keys by "
                        "the leases of the plan",
                    )

    def _conflicts(
        self, old: str, last: int, new: str, step: int
    ) -> Iterator[tuple[str, str, int, Vertex]]:
        """(state, op, its step, op): the last accesses of old users with the first of new ones.

        The plan before has accesses, too, of old users that had the key in the plan after.
        """
        leg, then = self._legs.at(last), self._uses_at(step)
        for at in (last, leg.first - 1) if leg.number else (last,):
            for state, uses in self._uses_at(at).items():
                for before, wrote in uses.get(old, ()):
                    for after, writes in then.get(state, {}).get(new, ()):
                        if wrote or writes:
                            yield state, before.name, at, after

    def _uses_at(self, step: int) -> Uses:
        """Who accesses what of these keys in the plan that runs a step."""
        graph = self._legs.at(step).plan.graph
        if id(graph) not in self._uses:
            self._uses[id(graph)] = _uses(graph, self._keys)
        return self._uses[id(graph)]


def _uses(graph: StepGraph, keys: str) -> Uses:
    found: dict[str, dict[str, Accesses]] = {}
    for state, datum in graph.states.items():
        if datum.keys == keys:
            uses = found[state] = {}
            for vertex in graph.vertices.values():
                writes = state in vertex.op.writes
                if writes or any(read.name == state for read in vertex.op.reads):
                    users = vertex.op.class_of(state)
                    uses[users] = (*uses.get(users, ()), (vertex, writes))
    return found


def watched(legs: Legs, states: Iterable[Any]) -> list[KeyPool]:
    """The pools that hand out keys of the run's states, each watched from now on."""
    found = []
    for state in states:
        for keys, pool in getattr(state, "pools", {}).items():
            assert isinstance(pool, KeyPool), "a state's `pools` are pools of keys, by name"
            # A partial, so that guards do not take what watches for a part of the state.
            pool.watch = partial(Grants(legs, keys).told)
            found.append(pool)
    return found
