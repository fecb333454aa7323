"""What a pipeline file may say of a node of some kind: the keys of every node, and its options."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import create_model

from ..graph.errors import GraphError
from ..nodes.kind import NodeKind
from ..nodes.node_config import NodeConfig
from ..nodes.options import Options
from .part import model_name

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
