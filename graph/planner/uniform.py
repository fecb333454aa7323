"""Whether all ranks decide alike: no decision may depend on what can differ between them.

A datum is *own* if a declaration says so, or if an op writes it that reads what is own and does
not agree on it with the others. Everything else is *same*: equal on all ranks, by induction along
the reference order, since a deterministic op makes the same of the same. An op that decides (the
rows of a batch, a shape, whether a collective is called) may read only what is same. The test is
reachability in the declared flow, and the path is the witness. After Aiken and Gay, "Barrier
inference", 1998, whose single-valued expressions are these data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import GraphError
from ..node import State, Value
from ..ranks import declared_name
from ..step_graph import StepGraph, Vertex


@dataclass(frozen=True)
class Divergence:
    """What may differ between ranks although it must not, and how it comes about.

    `path`: data and ops in turn, from what is own to the op that decides, or to the datum that is
    promised to be the same.
    """

    path: tuple[str, ...]
    decides: str  # what the op decides; empty for a promise
    line: int | None

    def __str__(self) -> str:
        shown = " → ".join(self.path)
        if not self.decides:
            return f"{self.path[-1]!r} is declared to be the same on all ranks: {shown}"
        return f"{self.path[-1]!r} decides {self.decides}: {shown}"


def check_uniform(graph: StepGraph) -> None:
    """Raise `GraphError` (`SW-OWN`) with every path by which ranks could decide differently."""
    found = divergences(graph)
    if found:
        ways = "; ".join(map(str, found))
        raise GraphError(
            f"ranks may differ where they must not. {ways}. What stands first on a path is each "
            "rank's own: let an op on the way agree on it (`agrees: true`), or let the decision "
            "read something else.",
            code="SW-OWN",
            line=found[0].line,
        )


def divergences(graph: StepGraph) -> list[Divergence]:
    """Each decision and each promise that what is own can reach, with a shortest path to it."""
    return list(_Flow(graph).divergences())


class _Flow:
    """The declared flow of data, the copies of all ranks taken together."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        data: list[Value | State] = [*graph.values.values(), *graph.states.values()]
        self._across = {declared_name(graph, datum.name): datum.across for datum in data}
        self._lines = {declared_name(graph, datum.name): datum.line for datum in data}
        self._readers: dict[str, dict[str, None]] = {}  # who writes a state sees it
        self._writes: dict[str, dict[str, None]] = {}
        self._copies: dict[str, list[Vertex]] = {}  # of an op, which ends may differ in
        for vertex in graph.vertices.values():
            op = declared_name(graph, vertex.name)
            self._copies.setdefault(op, []).append(vertex)
            seen = [read.name for read in vertex.op.reads]
            seen += [name for name in vertex.op.writes if name in graph.states]
            for name in seen:
                self._readers.setdefault(declared_name(graph, name), {})[op] = None
            for name in vertex.op.writes:
                self._writes.setdefault(op, {})[declared_name(graph, name)] = None

    def divergences(self) -> Iterator[Divergence]:
        came: dict[str, tuple[str, ...]] = {
            datum: (datum,) for datum, across in self._across.items() if across == "own"
        }
        reached: set[str] = set()
        queue = list(came)
        for datum in queue:  # grows while it is read: the shortest paths come first
            for op in self._readers.get(datum, {}):
                if op in reached:
                    continue
                reached.add(op)
                path = (*came[datum], op)
                copies = self._copies[op]
                deciding = next((each for each in copies if each.op.decides), None)
                if deciding is not None:
                    yield Divergence(path, deciding.op.decides, deciding.node.line)
                agrees = all(each.op.agrees for each in copies)
                for written in () if agrees else self._writes.get(op, ()):
                    if written in came:
                        continue
                    came[written] = (*path, written)
                    if self._across.get(written) == "same":
                        yield Divergence(came[written], "", self._lines[written])
                    else:
                        queue.append(written)
