"""The decode step as a step graph: the nodes that are listed, for a given depth.

The listing is the plain serial program of one step, from `schedule` to `commit`. Depth D says how
far the node whose kind runs ahead (`schedule`) is ahead of the others: in each iteration it works
on the step D − 1 steps later. So D = 1 is the synchronous loop and D ≥ 2 is asynchronous
scheduling, with no second code path. An offset o means that in iteration t a node acts on step
t − o.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..graph.errors import GraphError
from ..graph.node import State, Value
from ..graph.step_graph import StepGraph
from .kind import NodeKind, NodeSpec, Shape
from .kinds.bitmask import GrammarOptions
from .kinds.d2h_counts import KIND as COUNTS
from .machine import Machine
from .options import DrafterOptions
from .registry import kind


def offset(kind: NodeKind, depth: int) -> int:
    """How many steps behind the iteration a node of `kind` acts. Raises `GraphError`."""
    if depth < 1:
        raise GraphError(f"depth must be at least 1, not {depth}", code="SW-DEPTH")
    return min(1, depth - 1) - (depth - 1 if kind.runs_ahead else 0)


def _with_its_nodes(shape: Shape, specs: Sequence[NodeSpec], kinds: Sequence[NodeKind]) -> Shape:
    """The shape with what the listed nodes make of it."""
    shape = replace(
        shape,
        draft_tokens=0,
        features=False,
        structured=any(issubclass(each.options, GrammarOptions) for each in kinds),
        padded=COUNTS not in kinds,
    )
    for spec, each in zip(specs, kinds, strict=True):
        if each.drafter is not None:
            options = spec.options or each.options()
            assert isinstance(options, DrafterOptions), (
                "the kind's promise, checked when it is made"
            )
            shape = replace(
                shape,
                draft_tokens=options.tokens,
                features=each.drafter.features,
                draws=shape.draws and each.drafter.draws,
            )
    return replace(shape, draws=shape.draws and shape.draft_tokens > 0)


def _kind_of(spec: NodeSpec) -> NodeKind:
    """The kind that a node names. Raises `GraphError` with the line of the node."""
    try:
        return kind(spec.kind)
    except GraphError as error:
        raise GraphError(error.message, code=error.code, line=spec.line) from error


def decode_step(
    specs: Sequence[NodeSpec],
    shape: Shape,
    machine: Machine | None = None,
    *,
    order: Literal["keep", "search"] = "search",
    name: str = "decode",
) -> StepGraph:
    """Build the graph of the nodes listed, in the order of the plain serial program.

    `shape` gives sizes and depth; what drafts and grammars make of it follows from the nodes.
    Without a machine the graph can be checked, but not run. Raises `GraphError`.
    """
    kinds = [_kind_of(spec) for spec in specs]
    shape = _with_its_nodes(shape, specs, kinds)
    built = [
        each(replace(spec, shape=shape, offset=offset(each, shape.depth)), machine)
        for spec, each in zip(specs, kinds, strict=True)
    ]
    values: dict[str, Value] = {}
    for each in built:
        for value in each.values:
            if value.name in values:
                raise GraphError(
                    f"value {value.name!r} has two owners; the second is {each.node.name!r}",
                    code="SW-TWO-WRITERS",
                    line=each.node.line,
                )
            values[value.name] = value
    states = dict.fromkeys(state for each in built for state in each.states)
    return StepGraph.build(
        [each.node for each in built],
        values.values(),
        [State(state) for state in states],
        order=order,
        name=name,
        launches="together" if shape.captured else "apart",
    )
