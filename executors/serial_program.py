"""The reference order of one plan's ops, and what any order of them keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from ..graph.errors import StepweaveError
from ..graph.planner.requirements import requirements
from ..graph.step_graph import StepGraph


@dataclass(frozen=True)
class SerialProgram:
    """All ops in one program: op u of step i comes at the place i · `length` + `places[u]`.

    That is the reference order, by step + offset and then by place in the listing, but that an op
    whose inputs the listing writes below it comes after their writers. States change in the order
    of the listing, whatever else moves: so where a plan exists, there is a serial program too.
    """

    graph: StepGraph
    length: int
    places: Mapping[str, int]

    @staticmethod
    def of(graph: StepGraph) -> SerialProgram:
        """Raises `StepweaveError` for a graph that no order can run, and so no plan."""
        vertices = graph.vertices
        length = len(vertices) + 1
        places = {name: v.offset * length + v.position for name, v in vertices.items()}
        orders = list(_orders(graph))
        for _ in range(length):
            before = dict(places)
            for first, then, distance in orders:
                # `then` of step i + distance comes after `first` of step i.
                places[then] = max(places[then], places[first] - distance * length + 1)
            if places == before:
                return SerialProgram(graph, length, places)
        raise StepweaveError(
            f"{graph.name}: there is no serial program, since its reads form a cycle: compile it "
            "to see which"
        )

    def order(self) -> list[tuple[str, int]]:
        """Each op with its offset, in the order in which an iteration runs them."""
        listed = [*self.graph.vertices]
        by_place = sorted(listed, key=lambda op: (self.places[op] % self.length, listed.index(op)))
        return [(op, self.places[op] // self.length) for op in by_place]

    def orders(self, slots: Mapping[str, int | None]) -> list[tuple[str, str, int]]:
        """(u, v, d): u of step i is before v of step i + d in any program with as many cells."""
        cells = {name: self.cells_needed(name, slots.get(name)) for name in self.graph.values}
        own = [(op, op, 1) for op in self.graph.vertices]
        return [*own, *_orders(self.graph, cells)]

    def cells_needed(self, name: str, slots: int | None) -> int:
        """Cells for as many versions as the program has alive at once, at least K.

        Version i lives until each reader, at step i + carry, has come up. At least the carry,
        too: so no cell is used again after a reader was skipped that was past the last step, and
        every reader of a cell's earlier versions has been counted.
        """
        wrote = next((v.name for v in self.graph.vertices.values() if name in v.op.writes), None)
        alive = [
            max(read.carry, read.carry + self._apart(wrote, reader.name))
            for reader in self.graph.vertices.values()
            for read in reader.op.reads
            if read.name == name and wrote is not None
        ]
        return max(slots or 1, max(alive, default=0))

    def _apart(self, first: str, then: str) -> int:
        """How many further times `first` has come up when `then` of the same step is done."""
        return (self.places[then] - self.places[first]) // self.length + 1


def _orders(
    graph: StepGraph, cells: Mapping[str, int] = MappingProxyType({})
) -> Iterator[tuple[str, str, int]]:
    """(u, v, d): u of step i is before v of step i + d; reads, states, and the parts of nodes.

    And who reads a cell before who writes it again, where values have so many.
    """
    for needed in requirements(graph, cells):
        if needed.source != needed.target or needed.distance < 1:
            yield needed.source, needed.target, needed.distance
    for node in graph.nodes:
        ops = (*node.op_names("host"), *(node.op_names("device") if node.device else ()))
        yield from ((first, then, 0) for first, then in pairwise(ops))
