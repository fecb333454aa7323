"""Abstract graphs: step graphs written down without an implementation.

To study, check and draw a pipeline before it exists. Only what the file's words mean is decided
here; whether the declarations make sense is `graph.validate`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from ..graph.arguments import MAX_DISTANCE
from ..graph.errors import did_you_mean, nearest
from ..graph.modes import MAX_MODES, Mode
from ..graph.node import Node, Op, State, Value
from ..graph.ranks import Ranked, ranked_graph
from ..graph.rates import MAX_CYCLE, MAX_FIRINGS
from ..graph.step_graph import StepGraph
from ..nodes.node_config import Microseconds, Name, ReadText, parse_read
from ..requests.keys import Listed
from .abstract_keys import AbstractLease, Classes, Keys
from .abstract_ranks import (
    AbstractCollective,
    AbstractMessage,
    Across,
    Agrees,
    Decides,
    Listing,
    Members,
    Offset,
    Offsets,
    Ranks,
    by_rank,
)
from .errors import ConfigError, Problem
from .names import NodeName
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
    agrees: Agrees = False
    decides: Decides = None
    classes: Classes = Field(default_factory=dict, max_length=256)

    def op(self) -> Op:
        return _op(self, self.name)


class AbstractOp(Part):
    """What a node does on one actor: one op, or consecutive phases."""

    reads: tuple[ReadText, ...] = Field(
        default=(), max_length=256, description="Values and states that it reads."
    )
    writes: tuple[Name, ...] = Field(
        default=(), max_length=256, description="Values and states that it writes."
    )
    cost_us: Microseconds | None = Field(default=None, description="Duration in µs.")
    agrees: Agrees = False
    decides: Decides = None
    classes: Classes = Field(default_factory=dict, max_length=256)
    phases: tuple[AbstractPhase, ...] = Field(
        default=(),
        max_length=64,
        description="Consecutive parts of the op, in place of reads, writes and cost_us.",
    )

    @model_validator(mode="after")
    def _either_phases_or_accesses(self) -> AbstractOp:
        said = self.model_fields_set - {"phases"}
        if self.phases and any(getattr(self, key) not in ((), None, False, {}) for key in said):
            raise ValueError("an op with phases declares reads, writes and cost_us in its phases")
        return self

    def ops(self) -> tuple[Op, ...]:
        """The graph's ops: one, or one for each phase."""
        return tuple(p.op() for p in self.phases) if self.phases else (_op(self, None),)


def _op(part: AbstractOp | AbstractPhase, phase: str | None) -> Op:
    return Op(
        reads=tuple(parse_read(text) for text in part.reads),
        writes=part.writes,
        phase=phase,
        cost_us=part.cost_us,
        agrees=part.agrees,
        decides=part.decides or "",
        classes=tuple(part.classes.items()),
    )


class AbstractNode(Part):
    """A unit of work in a step."""

    name: NodeName = Field(
        description="Name of the node; its ops are called `name.host` and `name.device`."
    )
    kind: Literal["abstract"] = Field(
        default="abstract", description="A node without an implementation."
    )
    actor: Name = Field(
        default="driver", description="The host thread that runs it, or launches its device op."
    )
    stream: Name | None = Field(default=None, description="The stream that runs its device op.")
    offset: Offset | Offsets = Field(
        default=0,
        description="In iteration t it acts on step t - offset. With `ranks`, also by rank: "
        "`{0: 2}`.",
    )
    launch_latency_us: Microseconds | None = Field(
        default=None, description="µs from the start of the launch until the device op can start."
    )
    allow_sync: bool = Field(
        default=False, description="true: its host ops may wait for the device."
    )
    rate: int = Field(
        default=1,
        ge=1,
        le=MAX_FIRINGS,
        description="How many times it runs in a step. Nodes of one rate that are listed one after "
        "another are a loop.",
    )
    every: int = Field(default=1, ge=1, le=MAX_CYCLE, description="It runs once in so many steps.")
    first: int = Field(
        default=0, ge=0, lt=MAX_CYCLE, description="With `every`: the first step in which it runs."
    )
    host: AbstractOp | None = Field(default=None, description="The op on its host thread.")
    device: AbstractOp | None = Field(default=None, description="The op on its stream.")
    ranks: Members | None = Field(
        default=None, description="With `ranks` of the graph: those that have it. null: all."
    )
    collective: AbstractCollective | None = Field(
        default=None,
        description="With `ranks`: ranks meet here. Its op has the phases `enter` and `leave`.",
    )
    message: AbstractMessage | None = Field(
        default=None, description="With `ranks`: one sends to another here, in the same phases."
    )
    _line: int | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _one_meeting(self) -> AbstractNode:
        if self.collective and self.message:
            raise ValueError("is either a collective or a message")
        if self.ranks and (self.collective or self.message):
            raise ValueError("is on the ranks that meet: leave `ranks` out")
        return self

    def ranked(self, ranks: int) -> Ranked:
        """The node of a graph of several ranks."""
        comm = self.message.comm(self.name) if self.message else None
        if self.collective:
            comm = self.collective.comm(self.name, ranks)
        return Ranked(self.node(), self.ranks, comm, by_rank(self.offset)[1])

    def node(self) -> Node:
        device = self.device or (AbstractOp() if self.stream and self._meets else None)
        return Node(
            name=self.name,
            host=self.host.ops() if self.host else (Op(),),
            device=device.ops() if device else (),
            actor=self.actor,
            stream=self.stream,
            offset=by_rank(self.offset)[0],
            kind=self.kind,
            launch_latency_us=self.launch_latency_us,
            allow_sync=self.allow_sync,
            line=self._line,
            rate=self.rate,
            every=self.every,
            first=self.first,
        )

    @property
    def _meets(self) -> bool:
        return bool(self.collective or self.message)


class AbstractMode(Part):
    """What a step in this mode takes; orders and waits are those of the graph."""

    costs: dict[str, Microseconds] = Field(
        default_factory=dict,
        max_length=4096,
        description="By op, as `forward.device`: its duration in µs, where it is another than in "
        "the graph.",
    )
    skips: tuple[Name, ...] = Field(
        default=(), max_length=256, description="Nodes that have nothing to do in such a step."
    )
    after: tuple[Name, ...] | None = Field(
        default=None,
        max_length=MAX_MODES,
        description="The modes of the step before that it may follow. null: any.",
    )
    share: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="The part of all steps that are in it, for the expected period. null: unknown.",
    )

    untouched: dict[str, tuple[Name, ...]] = Field(
        default_factory=dict,
        max_length=4096,
        description="By op, as `sample.device`: values that it does not read in such a step, and "
        "states that it does not access. Counts where `told_by` is given.",
    )

    _line: int | None = PrivateAttr(default=None)

    def mode(self, name: str) -> Mode:
        said = (self.costs, self.skips, self.after, self.share, self.untouched)
        return Mode(name, *said, line=self._line)


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
    across: Across = None
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
            across=self.across,
        )


class AbstractState(Part):
    """A datum changed in place across steps."""

    name: Name = Field(description="Name of the state. `- kv` is short for `- {name: kv}`.")
    across: Across = None
    keys: Keys = None
    leases: Annotated[tuple[AbstractLease, ...], Field(max_length=256), Listed] = Field(
        default=(),
        description="With `keys`: after how many steps a key passes from one class of users to "
        "another at most, where the derived number is not to be taken.",
    )
    _line: int | None = PrivateAttr(default=None)

    def state(self) -> State:
        pins = tuple(lease.pin() for lease in self.leases)
        return State(self.name, line=self._line, across=self.across, keys=self.keys, leases=pins)


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
    ranks: Ranks | None = Field(
        default=None,
        description="Number of ranks: processes with threads, streams and data of their own. Each "
        "node is on all of them unless it says otherwise; `u` of rank 1 is called `u@1`. null: "
        "one, and no names of ranks.",
    )
    listing: Listing = Field(
        default_factory=dict,
        max_length=256,
        description="By rank, where it is another than that of `nodes`: its listing order, as "
        "`{1: [b, a]}`.",
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
    modes: dict[Name, AbstractMode | None] = Field(
        default_factory=dict,
        max_length=MAX_MODES,
        description="What differs between steps, such as prefill and decode, by name: `check` says "
        "how long a step takes in each of them, and in any sequence of them.",
    )
    told_by: Name | None = Field(
        default=None,
        description="The value that is the name of each step's mode: a host value that a host op "
        "writes. Then waits are left out in modes that do not need them, where both sides know "
        "the mode.",
    )
    nodes: tuple[AbstractNode, ...] = Field(
        min_length=1, max_length=MAX_NODES, description="The nodes of a step, in listing order."
    )

    def step_graph(self, name: str = "step") -> StepGraph:
        """The declared graph, validated. Raises `GraphError` with the line of what is wrong."""
        values = [value.value(name) for name, value in self.values.items()]
        states = [each.state() for each in self.states]
        if self.ranks is not None:
            return ranked_graph(
                [node.ranked(self.ranks) for node in self.nodes],
                values,
                states,
                ranks=self.ranks,
                listing={int(rank): names for rank, names in self.listing.items()},
                order=self.order,
                launches=self.launches,
                name=name,
            )
        return StepGraph.build(
            [node.node() for node in self.nodes],
            values,
            states,
            order=self.order,
            launches=self.launches,
            name=name,
            modes=[(mode or AbstractMode()).mode(name) for name, mode in self.modes.items()],
            told_by=self.told_by,
        )


def read_abstract(source: Located) -> AbstractGraph:
    """The abstract graph of a file, its parts knowing their lines, its names known.

    Raises `ConfigError` listing all that is wrong.
    """
    refuse_mapped_nodes(source)
    graph = validated(AbstractGraph, source)
    problems = [*_unknown_names(graph, source), *_without_ranks(graph, source)]
    if problems:
        raise ConfigError(*problems)
    for index, node in enumerate(graph.nodes):
        node._line = source.at(("nodes", index)).mark.line
    for index, state in enumerate(graph.states):
        state._line = source.at(("states", index)).mark.line
    named: list[tuple[str, Mapping[str, AbstractValue | AbstractMode | None]]] = [
        ("values", graph.values),
        ("modes", graph.modes),
    ]
    for section, parts in named:
        for name, part in parts.items():
            if part is not None:
                place = source.at((section, name))
                part._line = (place.key or place.mark).line
    return graph


def refuse_mapped_nodes(source: Located) -> None:
    """Nodes by their names, as a pipeline has them. Raises `ConfigError`."""
    nodes = source.at(("nodes",))
    if nodes is not source and isinstance(nodes.value, dict):
        name = next(iter(nodes.value), "forward")
        said = f"nodes must be a list in an abstract graph: write `- {{name: {name[:60]}, …}}`"
        raise ConfigError.at(nodes.key or nodes.mark, said)


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
    touched = {parse_read(text).name for _, _, text in _accesses(graph)} & {*data}
    for name in graph.values:
        # One that is like no other may be there for later.
        if name not in touched and nearest(name, touched) is not None:
            there = source.at(("values", name))
            yield Problem(
                there.key or there.mark,
                f"no op reads or writes {name!r}{did_you_mean(name, touched)}",
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


def _without_ranks(graph: AbstractGraph, source: Located) -> Iterator[Problem]:
    """Keys that mean something only where the graph has ranks."""
    if graph.ranks is not None:
        return
    if graph.listing:
        yield Problem(source.at(("listing",)).mark, "is by rank: say `ranks`, their number")
    for index, node in enumerate(graph.nodes):
        for key in ("ranks", "collective", "message"):
            if getattr(node, key) is not None:
                part = source.at(("nodes", index, key))
                said = f"nodes.{index}.{key}: the graph has no ranks; say `ranks`, their number"
                yield Problem(part.key or part.mark, said)
        if not isinstance(node.offset, int):
            part = source.at(("nodes", index, "offset"))
            yield Problem(
                part.mark, f"nodes.{index}.offset: the graph has no ranks; write a number"
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
