"""What a node kind is: a recipe from a name and a few numbers to a declared node.

The recipe sees the *shape* of the decode step (from the config), never the model: the graph that
`check` proves is the graph that runs. What ops need at run time they find in the `Machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..graph.errors import GraphError, StepweaveError, did_you_mean
from ..graph.node import Node, Op, OpContext, Read, Run, Value
from .later import op_for_a_run, value_for_a_run
from .machine import Machine
from .options import DrafterOptions, Options

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the decode step that its declarations may depend on."""

    depth: int = 2
    max_rows: int = 16
    token_budget: int = 256
    draft_tokens: int = 0  # k; 0: the pipeline has no drafter
    structured: bool = False  # a node of the pipeline fills grammar masks
    features: bool = False  # the drafter reads the target's hidden states
    draws: bool = False  # drafts are drawn, and verified against what they were drawn from
    padded: bool = True  # the drafter's shapes do not depend on how many drafts were accepted

    captured: bool = False  # runs of device ops are captured, and launched as one

    @property
    def table_rows(self) -> int:
        """Of tables by device row: the last is for lines of a step that stand for no request."""
        return self.max_rows + 1


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One entry of a pipeline's `nodes`, defaults filled in."""

    name: str
    kind: str
    shape: Shape = field(default_factory=Shape)
    actor: str = "driver"
    stream: str | None = None  # None: what the kind says
    offset: int = 0
    reads: Mapping[str, str] = field(default_factory=dict)  # parameter -> "value" or "value@-c"
    options: Options | None = None  # of the kind's model; None: its defaults
    host_cost_us: float | None = None
    device_cost_us: float | None = None
    launch_latency_us: float | None = None
    allow_sync: bool = False
    line: int | None = None
    device: torch.device | None = None  # the machine's; None in a graph that is only checked


@dataclass(frozen=True, slots=True)
class Built:
    """A node, the values it owns and the states it touches."""

    node: Node
    values: tuple[Value, ...] = ()
    states: tuple[str, ...] = ()


Build = Callable[[NodeSpec, Machine], Built]


@dataclass(frozen=True, slots=True)
class DrafterNeeds:
    """What a drafter asks of the nodes around it, so that they declare it only where it is used."""

    features: bool = False  # it reads `hidden`, which `forward` then writes
    draws: bool = False  # it can draw, and then writes what it drew from to `draft_probs`


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A registered kind. Third parties provide one through the entry point `stepweave.nodes`.

    Raises `TypeError` for a drafter whose options are not `DrafterOptions`; called for a node,
    `GraphError` for what the node says wrongly.
    """

    name: str
    summary: str
    build: Build
    options: type[Options] = Options  # the keys that a file may give a node of this kind
    drafter: DrafterNeeds | None = None  # for kinds that draft; their options have `tokens`
    runs_ahead: bool = False  # the node that `depth` moves: it works on steps to come

    def __post_init__(self) -> None:
        if self.drafter is None:
            return
        if self.options is Options:
            object.__setattr__(self, "options", DrafterOptions)
        elif not issubclass(self.options, DrafterOptions):
            raise TypeError(
                f"kind {self.name!r} drafts: its options must derive from DrafterOptions, "
                f"{self.options.__name__} does not"
            )

    def __call__(self, spec: NodeSpec, machine: Machine | None = None) -> Built:
        """Build the node, then apply wiring and cost hints, which are the same for every kind.

        With a machine it can run; without one the code of its ops is not even imported.
        """
        built = self._built(replace(spec, options=self._options(spec)), machine)
        node = built.node
        parameters = {read.name for op in (*node.host, *node.device) for read in op.reads}
        for parameter in spec.reads:
            if parameter not in parameters:
                raise GraphError(
                    f"node {spec.name!r} of kind {self.name!r} reads no {parameter!r}"
                    + did_you_mean(parameter, parameters),
                    code="SW-READS",
                    line=spec.line,
                )
        if spec.stream is not None and not node.device:
            raise GraphError(
                f"node {spec.name!r} of kind {self.name!r} runs on the host only: leave out "
                f"`stream: {spec.stream}`",
                code="SW-NODE",
                line=spec.line,
            )
        wiring = {parameter: parse_read(text) for parameter, text in spec.reads.items()}
        host = tuple(_rewire(op, wiring, spec.host_cost_us) for op in node.host)
        if spec.shape.captured and node.device:
            host = tuple(map(_free_if_bare, host))
        node = replace(
            node,
            kind=self.name,
            actor=spec.actor,
            offset=spec.offset,
            launch_latency_us=spec.launch_latency_us,
            allow_sync=spec.allow_sync or node.allow_sync,
            line=spec.line,
            stream=(spec.stream or node.stream) if node.device else None,
            host=host,
            device=tuple(_rewire(op, wiring, spec.device_cost_us) for op in node.device),
        )
        return replace(built, node=node)

    def _options(self, spec: NodeSpec) -> Options:
        """Those of the spec, or the defaults. Raises `GraphError` if they are another kind's."""
        if spec.options is None and not any(
            option.is_required() for option in self.options.model_fields.values()
        ):
            return self.options()
        if not isinstance(spec.options, self.options):
            raise GraphError(
                f"node {spec.name!r} of kind {self.name!r} needs options of type "
                f"{self.options.__name__}, not {type(spec.options).__name__}",
                code="SW-KIND",
                line=spec.line,
            )
        return spec.options

    def _built(self, spec: NodeSpec, machine: Machine | None) -> Built:
        """What `build` says; whatever goes wrong in it is told as a fault of this kind's code."""
        try:
            if machine is None:
                built = self.build(spec, Machine())
            else:
                built = self.build(replace(spec, device=machine.device), machine)
            if not isinstance(built, Built):
                raise TypeError(f"it must return a Built, not {type(built).__name__}")
            return built if machine is None else _for_a_run(built)
        except StepweaveError:
            raise
        except (Exception, SystemExit) as error:  # the boundary: somebody else's package
            raise GraphError(
                f"node {spec.name!r}: `build` of kind {self.name!r}, in module "
                f"{self.build.__module__!r}, failed: {type(error).__name__}: {error}",
                code="SW-KIND",
                line=spec.line,
            ) from error


def _for_a_run(built: Built) -> Built:
    node = built.node
    host, device = (tuple(map(op_for_a_run, ops)) for ops in (node.host, node.device))
    values = tuple(map(value_for_a_run, built.values))
    return replace(built, node=replace(node, host=host, device=device), values=values)


def parse_read(text: str) -> Read:
    """`"tokens"`, `"sample.tokens"` or `"tokens@-1"` as a read. Raises `GraphError`."""
    name, at, carry = text.partition("@")
    name = name.strip().rpartition(".")[2]
    if not at:
        return Read(name)
    try:
        distance = -int(carry)
    except ValueError:
        distance = -1
    if distance < 0:
        raise GraphError(
            f"{text!r}: a carry is written @-1, @-2 … (the version that many steps back)",
            code="SW-CARRY",
        )
    return Read(name, distance)


def _rewire(op: Op, wiring: Mapping[str, Read], cost_us: float | None) -> Op:
    renamed = {
        read.name: wiring[read.name]
        for read in op.reads
        if read.name in wiring and wiring[read.name] != read
    }
    reads = tuple(wiring.get(read.name, read) for read in op.reads)
    names = {old: new.name for old, new in renamed.items() if old != new.name}
    run = _renaming(op.run, names) if names and op.run is not None else op.run
    return replace(op, reads=reads, run=run, cost_us=op.cost_us if cost_us is None else cost_us)


def _free_if_bare(op: Op) -> Op:
    """A launch that does nothing else: a replayed graph has launched its ops already."""
    bare = not op.reads and not op.writes and op.run is None and op.cost_us is None
    return replace(op, cost_us=0.0) if bare else op


def _renaming(run: Run, names: Mapping[str, str]) -> Run:
    def renamed(ctx: OpContext) -> None:
        run(_Renamed(ctx, names))

    return renamed


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A context in which a node still calls a rewired read by the name its kind gave it."""

    ctx: OpContext
    names: Mapping[str, str]

    @property
    def step(self) -> int:
        return self.ctx.step

    @property
    def waited_s(self) -> float:
        return self.ctx.waited_s

    def read(self, name: str) -> Any:
        return self.ctx.read(self.names.get(name, name))

    def buffer(self, name: str) -> Any:
        return self.ctx.buffer(name)

    def write(self, name: str, datum: Any) -> None:
        self.ctx.write(name, datum)

    def state(self, name: str) -> Any:
        return self.ctx.state(name)

    def stop(self) -> None:
        self.ctx.stop()
