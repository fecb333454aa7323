"""A step graph: nodes, values and states, checked for sense but not yet ordered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from . import arguments
from .modes import Mode
from .node import Node, Op, Side, State, Value


@dataclass(frozen=True)
class Vertex:
    """One op in its place: the vertex of the periodic event graph."""

    name: str
    node: Node
    op: Op
    side: Side
    actor: str  # the host thread or stream that runs it
    offset: int
    position: int  # in the reference order: listing order, host before device, phases in order
    launch: str | None  # device ops: the host op that launches it (the last phase of the launch)


@dataclass(frozen=True)
class StepGraph:
    """The declared decode step. Listing order of `nodes` is the reference order."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    states: Mapping[str, State]
    order: Literal["keep", "search"] = "search"
    name: str = "step"
    launches: Literal["apart", "together"] = "apart"  # see `planner/units.py`
    ranks: tuple[int, ...] = ()  # those whose nodes it has, where there are several (`ranks.py`)
    modes: tuple[Mode, ...] = ()  # what differs between steps (`modes.py`)
    told_by: str | None = None  # the value that is the name of each step's mode
    declared: StepGraph | None = None  # what it was unrolled from, where nodes have rates
    cycle: int = 1  # steps of the declared graph that one of its own stands for (`rates.py`)

    @staticmethod
    def build(
        nodes: Iterable[Node],
        values: Iterable[Value],
        states: Iterable[str | State] = (),
        *,
        order: Literal["keep", "search"] = "search",
        name: str = "step",
        launches: Literal["apart", "together"] = "apart",
        ranks: Iterable[int] = (),
        modes: Iterable[Mode] = (),
        told_by: str | None = None,
    ) -> StepGraph:
        """Build and validate. Raises `GraphError` for the first wrong declaration."""
        from .form import check_form
        from .validate import check_names, validate

        listed, data = tuple(nodes), tuple(values)
        arguments.one_of("StepGraph.build", "order", order, ("keep", "search"))
        arguments.one_of("StepGraph.build", "launches", launches, ("apart", "together"))
        changed = tuple(State(s) if isinstance(s, str) else s for s in states)
        told = tuple(modes)
        check_form(listed, data, changed, told, told_by)
        check_names(listed, data, changed)
        graph = StepGraph(
            nodes=listed,
            values={value.name: value for value in data},
            states={state.name: state for state in changed},
            order=order,
            name=name,
            launches=launches,
            ranks=tuple(ranks),
            modes=told,
            told_by=told_by,
        )
        validate(graph)
        return graph

    def with_ops(self, change: Callable[[Vertex], Op]) -> StepGraph:
        """The same graph with other functions behind its ops: what `change` gives for each."""

        def changed(node: Node) -> Node:
            host = tuple(change(self.vertices[name]) for name in node.op_names("host"))
            device = tuple(change(self.vertices[name]) for name in node.op_names("device"))
            return replace(node, host=host, device=device)

        return replace(self, nodes=tuple(map(changed, self.nodes)))

    @cached_property
    def vertices(self) -> Mapping[str, Vertex]:
        """Every op by name, in reference order."""
        found: dict[str, Vertex] = {}
        for node in self.nodes:
            launch = node.op_names("host")[-1]
            for side, ops in (("host", node.host), ("device", node.device)):
                for name, op in zip(node.op_names(side), ops, strict=True):  # type: ignore[arg-type]
                    device = side == "device"
                    found[name] = Vertex(
                        name=name,
                        node=node,
                        op=op,
                        side="device" if device else "host",
                        actor=(node.stream or "") if device else node.actor,
                        offset=node.offset,
                        position=len(found),
                        launch=launch if device else None,
                    )
        return found

    @cached_property
    def writers(self) -> Mapping[str, str]:
        """The first op that writes each value and state that any writes."""
        found: dict[str, str] = {}
        for vertex in self.vertices.values():
            for name in vertex.op.writes:
                found.setdefault(name, vertex.name)
        return found

    @cached_property
    def reads(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """(op, carry) of each read of a value or state that any op reads, in reference order."""
        found: dict[str, list[tuple[str, int]]] = {}
        for vertex in self.vertices.values():
            for read in vertex.op.reads:
                found.setdefault(read.name, []).append((vertex.name, read.carry))
        return found

    def only_changes_states(self, op: str) -> bool:
        """Whether the op writes states and no value: what it did is in no value that it wrote."""
        writes = self.vertices[op].op.writes
        return bool(writes) and self.states.keys() >= set(writes)
