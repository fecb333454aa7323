"""What a node kind is: functions that declare its ops, and the options that a file may give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.bind import Declared, OpFunction
from ..graph.errors import GraphError
from ..graph.node import Node, Read
from .options import Options


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One entry of a pipeline's `nodes`, defaults filled in."""

    name: str
    kind: str
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


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A registered kind. Packages bring one through the entry point `stepweave.nodes`.

    `host` and `device`: its ops, functions decorated with `op`, in order; several of a side have a
    phase each. Without host ops of its own a device node's host op launches it. Its options are an
    instance of `options`, which a function gets by a parameter `= settings(Model)`.
    """

    name: str
    summary: str
    host: tuple[OpFunction[..., Any], ...] = ()
    device: tuple[OpFunction[..., Any], ...] = ()
    stream: str = "compute"  # of its device ops, unless a file says otherwise
    options: type[Options] = Options
    runs_ahead: bool = False  # the node that `depth` moves: it works on steps to come

    def declare(self, spec: NodeSpec, *, captured: bool = False) -> Declared:
        """The node of that spec. `captured`: its launches are replayed as one with others.

        Raises `GraphError` for options of another kind, and for a stream of a host node.
        """
        if spec.stream is not None and not self.device:
            raise GraphError(
                f"node {spec.name!r} of kind {self.name!r} runs on the host only: leave out "
                f"`stream: {spec.stream}`",
                code="SW-NODE",
                line=spec.line,
            )
        template = Node(
            spec.name,
            kind=self.name,
            actor=spec.actor,
            stream=(spec.stream or self.stream) if self.device else None,
            offset=spec.offset,
            launch_latency_us=spec.launch_latency_us,
            allow_sync=spec.allow_sync,
            line=spec.line,
        )
        return Declared(
            template,
            host=tuple(_costing(op, spec.host_cost_us) for op in self.host),
            device=tuple(_costing(op, spec.device_cost_us) for op in self.device),
            settings=self.settings(spec),
            wiring={parameter: parse_read(text) for parameter, text in spec.reads.items()},
            # A replayed graph has launched its ops already.
            launch_cost_us=0.0 if captured and spec.host_cost_us is None else spec.host_cost_us,
        )

    def settings(self, spec: NodeSpec) -> Options:
        """The options of the spec, or the defaults. Raises `GraphError` if they do not fit."""
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


def _costing(op: OpFunction[..., Any], cost_us: float | None) -> OpFunction[..., Any]:
    return op if cost_us is None else replace(op, cost_us=cost_us)


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
