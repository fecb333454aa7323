"""What a pipeline file may say of a node: the keys of every node, and the options of its kind."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import Field, PrivateAttr, create_model

from ..graph.errors import GraphError
from ..nodes.kind import NodeKind
from ..nodes.options import Options
from .abstract import Microseconds, Name, ReadText
from .part import Part, model_name


class NodeConfig(Part):
    """A node of the decode step; the options of its kind stand beside these keys.

    A node that was read is also an instance of its kind's model of options.
    """

    kind: Name | None = Field(
        default=None, description="A registered node kind. null: the kind with the node's name."
    )
    after: Name | None = Field(
        default=None,
        description="In a file that extends another: the node after which this one is listed.",
    )
    before: Name | None = Field(
        default=None,
        description="In a file that extends another: the node before which this one is listed.",
    )
    actor: Name = Field(
        default="driver", description="The host thread that runs it, or launches its device op."
    )
    stream: Name | None = Field(
        default=None, description="The stream that runs its device op. null: the kind's."
    )
    reads: dict[Name, ReadText] = Field(
        default_factory=dict,
        max_length=256,
        description="By parameter of the kind: the value it reads in this pipeline, as "
        "`value` or `value@-1`.",
    )
    host_cost_us: Microseconds | None = Field(
        default=None, description="Assumed duration of its host ops in µs."
    )
    device_cost_us: Microseconds | None = Field(
        default=None, description="Assumed duration of its device ops in µs."
    )
    launch_latency_us: Microseconds | None = Field(
        default=None, description="µs from the start of the launch until the device op can start."
    )
    allow_sync: bool = Field(
        default=False, description="true: its host ops may wait for the device."
    )
    _line: int | None = PrivateAttr(default=None)

    @property
    def line(self) -> int | None:
        """Where the file mentions this node."""
        return self._line


PLACEMENT = frozenset(NodeConfig.model_fields)
"""The keys of every node; any other is an option of its kind."""


def reading_model(kind: NodeKind) -> type[NodeConfig]:
    """What a node of that kind may say: the keys of every node, and the options of the kind.

    Raises `GraphError` for a kind whose options have the name of a key that every node has.
    """
    taken = sorted(PLACEMENT & kind.options.model_fields.keys())
    if taken:
        raise GraphError(
            f"kind {kind.name!r} has an option {taken[0]!r}, which is a key of every node; the "
            "kind has to rename it",
            code="SW-KIND",
        )
    return _with_options(kind.options)


@cache
def _with_options(options: type[Options]) -> type[NodeConfig]:
    """Kinds without options share one: the first use of a model builds it, which takes time."""
    bases: Any = (NodeConfig, options)
    model: type[NodeConfig] = create_model(model_name(options.__name__, "node"), __base__=bases)
    return model


@cache
def node_model(kind: NodeKind) -> type[NodeConfig]:
    """The same, with the name and summary of the kind, for the schema and the reference."""
    said = f"A node of kind {kind.name}: {kind.summary}."
    return create_model(model_name(kind.name, "node"), __base__=reading_model(kind), __doc__=said)
