"""What a node kind is: functions that declare its ops, and the options that a file may give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..graph.bind import Declared, OpFunction
from ..graph.errors import GraphError
from ..graph.node import Node
from ..graph.parameters import parameters
from .node_config import AUTO, NodeConfig, wired
from .options import Options
from .request_settings import RequestSetting

Stages = Literal["each", "all", "last", "late"]
"""Which stages of a model have a node. each: it runs the model, and each stage its part. all: each
does the same, since its host does. last: only the last, which has the logits. late: each, to what
it keeps itself, when it knows what was sampled: all but the last hear of that steps later.
"""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A registered kind. Packages bring one through the entry point `stepweave.nodes`.

    `host` and `device`: its ops, functions decorated with `op`, in order; several of a side have a
    phase each. Without host ops of its own a device node's host op launches it. Its options are an
    instance of `options`, which a function gets by a parameter `= settings(Model)`. `asks`: the
    numbers that it takes from each request. Raises `GraphError` for a function that is no op, and
    for one that takes other settings.
    """

    name: str
    summary: str
    host: tuple[OpFunction[..., Any], ...] = ()
    device: tuple[OpFunction[..., Any], ...] = ()
    stream: str = "compute"  # of its device ops, unless a file says otherwise
    options: type[Options] = Options
    asks: tuple[RequestSetting, ...] = ()  # found in `SampleRows.setting`
    runs_ahead: bool = False  # the node that `depth` moves: it works on steps to come
    stages: Stages = "last"  # of a model in stages: who has such a node
    spared: bool = False  # tokens are the same without it: another plan may leave it out

    def __post_init__(self) -> None:
        for side, ops in (("host", self.host), ("device", self.device)):
            if not isinstance(ops, tuple):
                name = ops.name if isinstance(ops, OpFunction) else "f"
                raise GraphError(
                    f"kind {self.name!r}: {side} must be a tuple of ops: `{side}=({name},)`",
                    code="SW-KIND",
                )
        for each in (*self.host, *self.device):
            if not isinstance(each, OpFunction):
                name = getattr(each, "__name__", type(each).__name__)
                raise GraphError(
                    f"kind {self.name!r}: {name!r} is no op, since nothing says what it writes: "
                    "decorate it with `@op(writes=…)`",
                    code="SW-KIND",
                )
            for model in _settings_of(each.function):
                if not issubclass(self.options, model):
                    raise GraphError(
                        f"kind {self.name!r}: its op {each.name!r} takes settings({model.__name__})"
                        f", but its options are {self.options.__name__}: say "
                        f"`options={model.__name__}`",
                        code="SW-KIND",
                    )

    def declare(
        self, name: str, node: NodeConfig, *, offset: int = 0, captured: bool = False
    ) -> Declared:
        """A node of this kind. `captured`: its launches are replayed as one with others.

        Raises `GraphError` for options of another kind, and for what a host node has none of.
        """
        for key in () if self.device else ("stream", "device_cost_us", "launch_latency_us"):
            if (said := getattr(node, key)) is not None:
                raise GraphError(
                    f"node {name!r} of kind {self.name!r} runs on the host only: leave out "
                    f"`{key}: {said}`",
                    code="SW-NODE",
                    line=node.line,
                )
        template = Node(
            name,
            kind=self.name,
            actor=node.actor,
            stream=self._stream(node) if self.device else None,
            offset=offset,
            launch_latency_us=node.launch_latency_us,
            allow_sync=node.allow_sync,
            line=node.line,
        )
        return Declared(
            template,
            host=tuple(_costing(op, node.host_cost_us) for op in self.host),
            device=tuple(_costing(op, node.device_cost_us) for op in self.device),
            settings=self.settings(name, node),
            wiring={parameter: wired(text)[1] for parameter, text in node.reads.items()},
            # A replayed graph has launched its ops already.
            launch_cost_us=0.0 if captured and node.host_cost_us is None else node.host_cost_us,
        )

    def _stream(self, node: NodeConfig) -> str:
        """Of its device ops: where a file leaves it open, the usual one until it is chosen."""
        return self.stream if node.stream in (None, AUTO) else node.stream

    def writes(self, value: str) -> bool:
        """Whether one of its ops writes the value of that name."""
        return any(write.name == value for op in (*self.host, *self.device) for write in op.writes)

    def settings(self, name: str, node: NodeConfig) -> Options:
        """The options of a node. Raises `GraphError` for those of another kind."""
        if isinstance(node, self.options):
            return node
        if not isinstance(node, Options) and not any(
            option.is_required() for option in self.options.model_fields.values()
        ):
            return self.options()
        raise GraphError(
            f"node {name!r} of kind {self.name!r} needs options of type {self.options.__name__}",
            code="SW-KIND",
            line=node.line,
        )


def _settings_of(function: Callable[..., Any]) -> Iterator[type]:
    """The models of options that a function takes; its resources may be brought, and take none."""
    for each in parameters(function).values():
        if each is not None and each.role == "options":
            yield each.of


def _costing(op: OpFunction[..., Any], cost_us: float | None) -> OpFunction[..., Any]:
    return op if cost_us is None else replace(op, cost_us=cost_us)
