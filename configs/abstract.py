"""Abstract graphs: step graphs written down without an implementation.

To study, check and draw a pipeline before it exists. Only what the file's words mean is decided
here; whether the declarations make sense is `graph.validate`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from ..graph.arguments import MAX_DISTANCE
from ..graph.errors import did_you_mean
from ..graph.node import Node, Op, State, Value
from ..graph.step_graph import StepGraph
from ..nodes.node_config import Microseconds, Name, ReadText, parse_read
from .errors import ConfigError, Problem
from .part import Part
from .validated import validated
from .yaml_source import Located, Location

MAX_NODES = 256


class AbstractPhase(Part):
    """A part of an op, so that an access can end before the op does."""

    name: Name = Field(description="Name of the phase; its op is called `node.host.name`.")
    reads: tuple[ReadText, ...] = Field(
        default=(), max_length=256, description="Values and states, as for an op."
    )
    writes: tuple[Name, ...] = Field(
        default=(), max_length=256, description="Values and states, as for an op."
    )
    cost_us: Microseconds | None = Field(default=None, description="Duration in µs.")


class AbstractOp(Part):
    """What a node does on one actor: one op, or consecutive phases."""

    reads: tuple[ReadText, ...] = Field(
        default=(), max_length=256, description="Values and states that it reads."
    )
    writes: tuple[Name, ...] = Field(
        default=(), max_length=256, description="Values and states that it writes."
    )
    cost_us: Microseconds | None = Field(default=None, description="Duration in µs.")
    phases: tuple[AbstractPhase, ...] = Field(
        default=(),
        max_length=64,
        description="Consecutive parts of the op, in place of reads, writes and cost_us.",
    )

    @model_validator(mode="after")
    def _either_phases_or_accesses(self) -> AbstractOp:
        if self.phases and (self.reads or self.writes or self.cost_us is not None):
            raise ValueError("an op with phases declares reads, writes and cost_us in its phases")
        return self

    def ops(self) -> tuple[Op, ...]:
        """The graph's ops: one, or one for each phase."""
        if not self.phases:
            return (_op(self.reads, self.writes, self.cost_us, phase=None),)
        return tuple(_op(p.reads, p.writes, p.cost_us, phase=p.name) for p in self.phases)


def _op(
    reads: Iterable[str], writes: Iterable[str], cost_us: float | None, phase: str | None
) -> Op:
    return Op(tuple(parse_read(text) for text in reads), tuple(writes), phase, cost_us)


class AbstractNode(Part):
    """A unit of work in a step."""

    name: Name = Field(
        description="Name of the node; its ops are called `name.host` and `name.device`."
    )
    kind: Literal["abstract"] = Field(
        default="abstract", description="A node without an implementation."
    )
    actor: Name = Field(
        default="driver", description="The host thread that runs it, or launches its device op."
    )
    stream: Name | None = Field(default=None, description="The stream that runs its device op.")
    offset: int = Field(
        default=0,
        ge=-MAX_DISTANCE,
        le=MAX_DISTANCE,
        description="In iteration t it acts on step t - offset.",
    )
    launch_latency_us: Microseconds | None = Field(
        default=None, description="µs from the start of the launch until the device op can start."
    )
    allow_sync: bool = Field(
        default=False, description="true: its host ops may wait for the device."
    )
    host: AbstractOp | None = Field(default=None, description="The op on its host thread.")
    device: AbstractOp | None = Field(default=None, description="The op on its stream.")
    _line: int | None = PrivateAttr(default=None)

    def node(self) -> Node:
        return Node(
            name=self.name,
            host=self.host.ops() if self.host else (Op(),),
            device=self.device.ops() if self.device else (),
            actor=self.actor,
            stream=self.stream,
            offset=self.offset,
            kind=self.kind,
            launch_latency_us=self.launch_latency_us,
            allow_sync=self.allow_sync,
            line=self._line,
        )


class AbstractValue(Part):
    """A datum written anew in each step."""

    place: Literal["host", "pinned", "device"] = Field(
        default="host", description="`pinned` is host memory that a stream can reach."
    )
    storage: Literal["slots", "fresh"] | None = Field(
        default=None,
        description="slots: static buffers. fresh: allocated in each step. null: fresh on the "
        "host if `slots` is not given, slots otherwise.",
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DISTANCE,
        description="Number of physical copies. null: the compiler derives it.",
    )
    initial: Literal["external"] | None = Field(
        default=None,
        description="`external`: the value comes from outside the graph, and no node writes it.",
    )
    bytes: int = Field(default=0, ge=0, le=1 << 60, description="Size of one slot.")
    _line: int | None = PrivateAttr(default=None)

    def value(self, name: str) -> Value:
        return Value(
            name=name,
            place=self.place,
            storage=self.storage or Value.default_storage(self.place, self.slots),
            slots=self.slots,
            nbytes=self.bytes,
            external=self.initial == "external",
            line=self._line,
        )


class AbstractState(Part):
    """A datum changed in place across steps."""

    name: Name = Field(description="Name of the state. `- kv` is short for `- {name: kv}`.")
    _line: int | None = PrivateAttr(default=None)


def _state_by_name(state: Any) -> Any:
    return {"name": state} if isinstance(state, str) else state


def _mapping_or_nothing(value: Any) -> Any:
    return {} if value is None else value  # `batch:` alone declares a value with every default


class AbstractGraph(Part):
    """A decode step declared without an implementation."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    order: Literal["keep", "search"] = Field(
        default="search",
        description="keep: actors run ops in the listed order. search: the compiler chooses "
        "the driver's order.",
    )
    launches: Literal["apart", "together"] = Field(
        default="apart",
        description="together: where a host op only launches, its launch stands directly behind "
        "that of the device node listed before it, so that both can be replayed as one.",
    )
    actors: tuple[Name, ...] | None = Field(
        default=None,
        description="Names of the host threads; with this key, any other name "
        "is an error. null: any name.",
    )
    streams: tuple[Name, ...] | None = Field(
        default=None,
        description="Names of the streams; with this key, any other name is an "
        "error. null: any name.",
    )
    values: dict[
        Name,
        Annotated[
            AbstractValue,
            BeforeValidator(_mapping_or_nothing, json_schema_input_type=AbstractValue | None),
        ],
    ] = Field(
        default_factory=dict,
        max_length=4096,
        description="Values by name: data that is written anew in each step.",
    )
    states: tuple[
        Annotated[
            AbstractState,
            BeforeValidator(_state_by_name, json_schema_input_type=str | AbstractState),
        ],
        ...,
    ] = Field(
        default=(),
        max_length=4096,
        description="States: data that is changed in place across steps.",
    )
    nodes: tuple[AbstractNode, ...] = Field(
        min_length=1, max_length=MAX_NODES, description="The nodes of a step, in listing order."
    )

    def step_graph(self, name: str = "step") -> StepGraph:
        """The declared graph, validated. Raises `GraphError` with the line of what is wrong."""
        return StepGraph.build(
            [node.node() for node in self.nodes],
            [value.value(name) for name, value in self.values.items()],
            [State(state.name, line=state._line) for state in self.states],
            order=self.order,
            launches=self.launches,
            name=name,
        )


def read_abstract(source: Located) -> AbstractGraph:
    """The abstract graph of a file, its parts knowing their lines, its names known.

    Raises `ConfigError` listing all that is wrong.
    """
    graph = validated(AbstractGraph, source)
    problems = list(_unknown_names(graph, source))
    if problems:
        raise ConfigError(*problems)
    for index, node in enumerate(graph.nodes):
        node._line = source.at(("nodes", index)).mark.line
    for index, state in enumerate(graph.states):
        state._line = source.at(("states", index)).mark.line
    for name, value in graph.values.items():
        place = source.at(("values", name))
        value._line = (place.key or place.mark).line
    return graph


def _unknown_names(graph: AbstractGraph, source: Located) -> Iterator[Problem]:
    data = [*graph.values, *(state.name for state in graph.states)]
    for place, op, text in _accesses(graph):
        name = parse_read(text).name
        if name not in data:
            verb = "reads" if "reads" in place else "writes"
            yield Problem(
                source.at(place).mark,
                f"{op} {verb} {name!r}, which is neither a value nor a state"
                + did_you_mean(name, data),
                "SW-UNKNOWN-NAME",
            )
    for index, part in enumerate(graph.nodes):
        for key, said, known in (
            ("actor", part.actor, graph.actors),
            ("stream", part.stream, graph.streams),
        ):
            if known is not None and said is not None and said not in known:
                yield Problem(
                    source.at(("nodes", index, key)).mark,
                    f"unknown {key} {said!r}{did_you_mean(said, known)}",
                    "SW-UNKNOWN-ACTOR",
                )


def _accesses(graph: AbstractGraph) -> Iterator[tuple[Location, str, str]]:
    """Every read and write: where it is said, the op, and what it says."""
    for index, node in enumerate(graph.nodes):
        for side, op in (("host", node.host), ("device", node.device)):
            if op is None:
                continue
            place: Location = ("nodes", index, side)
            name = f"{node.name}.{side}"
            parts: list[tuple[Location, str, AbstractOp | AbstractPhase]] = [(place, name, op)]
            for i, phase in enumerate(op.phases):
                parts.append(((*place, "phases", i), f"{name}.{phase.name}", phase))
            for where, said, part in parts:
                yield from (((*where, "reads", i), said, text) for i, text in enumerate(part.reads))
                yield from (
                    ((*where, "writes", i), said, text) for i, text in enumerate(part.writes)
                )
