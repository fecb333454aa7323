"""The decode step as a step graph: which nodes, in which reference order, for a given depth.

The meaning of the pipeline is a serial program in one fixed cyclic order:

    prepare_inputs(i), forward(i), commit(i−1), bitmask(i), sample(i), draft(i), d2h_copy(i)

Depth D only says where `schedule` stands in it: after commit(i−D) and before commit(i−D+1). So
D = 1 is the synchronous loop and D ≥ 2 is asynchronous scheduling, with no second code path. An
offset o means that in iteration t the node acts on step t − o. Where device work is captured and no
mask has to come from the host, commit(i−1) stands last: what it does touches nothing of step i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..graph.errors import GraphError
from ..graph.node import State, Value
from ..graph.step_graph import StepGraph
from .kind import NodeKind, NodeSpec, Shape
from .machine import Machine
from .registry import kind, known_kinds


def listing(shape: Shape) -> list[tuple[str, int]]:
    """(node, offset) in reference order. Raises `GraphError` for a depth below 1."""
    if shape.depth < 1:
        raise GraphError(f"depth must be at least 1, not {shape.depth}", code="SW-DEPTH")
    head = [("prepare_inputs", 0), ("forward", 0)]
    tail = [("sample", 0)]
    if shape.structured:
        tail.insert(0, ("bitmask", 0))
    if shape.draft_tokens > 0:
        tail += [("draft", 0)] if shape.padded else [("d2h_counts", 0), ("draft", 0)]
    tail.append(("d2h_copy", 0))
    commit = ("commit", 1)
    if shape.depth == 1:
        return [commit, ("schedule", 0), *head, *tail]
    if shape.captured and not shape.structured:
        head, tail = [*head, *tail], []  # no host work parts the launches: one graph can hold them
    if shape.depth == 2:
        return [("schedule", 0), *head, commit, *tail]
    return [*head, ("schedule", 2 - shape.depth), commit, *tail]


def standard_kind(node: str, shape: Shape) -> str:
    """The kind of a node of the default listing: its name, but for the drafter."""
    return shape.drafter if node == "draft" else node


def _with_what_the_drafter_needs(shape: Shape, overrides: Mapping[str, NodeSpec]) -> Shape:
    """The shape with `features` and `draws` as the drafter's kind asks for them."""
    if shape.draft_tokens == 0:
        return replace(shape, features=False, draws=False)
    spec = overrides.get("draft") or NodeSpec("draft", standard_kind("draft", shape))
    needs = _kind_of(spec).drafter
    if needs is None:
        raise GraphError(
            f"kind {spec.kind!r} of node 'draft' is no drafter; there are "
            + ", ".join(name for name in known_kinds() if kind(name).drafter is not None),
            code="SW-KIND",
            line=spec.line,
        )
    return replace(shape, features=needs.features, draws=shape.draws and needs.draws)


def _kind_of(spec: NodeSpec) -> NodeKind:
    """The kind that a node names. Raises `GraphError` with the line of the node."""
    try:
        return kind(spec.kind)
    except GraphError as error:
        raise GraphError(error.message, code=error.code, line=spec.line) from error


def decode_step(
    shape: Shape,
    machine: Machine | None = None,
    *,
    overrides: Mapping[str, NodeSpec] | None = None,
    extra: Sequence[tuple[NodeSpec, str]] = (),
    order: Literal["keep", "search"] = "search",
    name: str = "decode",
) -> StepGraph:
    """Build the decode step's graph.

    `overrides` replace what the default listing says of a node (its offset and shape stay);
    `extra` nodes are inserted after the node that they name. Without a machine the graph can be
    checked, but not run. Raises `GraphError`.
    """
    shape = _with_what_the_drafter_needs(shape, overrides or {})
    specs: list[NodeSpec] = []
    for node, offset in listing(shape):
        spec = (overrides or {}).get(node) or NodeSpec(node, standard_kind(node, shape))
        specs.append(replace(spec, shape=shape, offset=offset))
    for spec, after in extra:
        names = [placed.name for placed in specs]
        if after not in names:
            raise GraphError(
                f"node {spec.name!r} is to stand after {after!r}, which is not in the pipeline "
                f"({', '.join(names)})",
                code="SW-NODE",
                line=spec.line,
            )
        specs.insert(names.index(after) + 1, replace(spec, shape=shape))
    built = [_kind_of(spec)(spec, machine) for spec in specs]
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
