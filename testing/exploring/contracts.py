"""Whether checking mode sees a false declaration: ops that touch all that they truly access.

A mutant's false declarations go with its true ops. Each op reads and writes, in tensors, what the
true graph declares; checking mode holds it to what the mutant declares. A carry that is declared
wrongly is no undeclared access: the op is given the version that it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ...executors.run_arguments import RunArguments
from ...graph.errors import StepweaveError
from ...graph.node import Node, Op, OpContext
from ...graph.step_graph import StepGraph
from ..checking.mode import Strict
from ..histories import with_graph
from ..unverified import run_unverified
from .mutants import Mutant

STEPS = 2  # so that every carry of one has a version to read


def breaks_contract(mutant: Mutant) -> bool:
    """Whether the true ops, run under the mutant's declarations, are refused something."""
    if mutant.declared is None:
        return False
    graph = touching(mutant.declared, mutant.true.graph)
    states: Mapping[str, object] = {name: torch.zeros(2) for name in graph.states}
    try:
        run_unverified(with_graph(mutant.true, graph), Strict(), RunArguments(STEPS, states))
    except StepweaveError:
        return True
    return False


def touching(declared: StepGraph, true: StepGraph) -> StepGraph:
    """These declarations, with ops that touch, in tensors, all that the true graph declares."""

    def op(mine: Op, its: Op) -> Op:
        def touch(ctx: OpContext) -> None:
            total = torch.zeros(2)
            for read in its.reads:
                of_value = read.name in true.values
                datum = ctx.read(str(read)) if of_value else ctx.state(read.name)
                if datum is not None:
                    total = total + datum
            for name in its.writes:
                if name in true.values:
                    ctx.write(name, total.clone())
                else:
                    ctx.state(name).add_(1)

        return replace(mine, run=touch)

    def node(mine: Node, its: Node) -> Node:
        return replace(
            mine,
            host=tuple(map(op, mine.host, its.host)),
            device=tuple(map(op, mine.device, its.device)),
        )

    return replace(
        declared,
        nodes=tuple(map(node, declared.nodes, true.nodes)),
        values={
            name: replace(value, initial=None, allocate=None)
            for name, value in declared.values.items()
        },
    )
