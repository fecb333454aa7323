"""A small pipeline in modes: a mask is filled on another thread, and read in masked steps alone."""

from __future__ import annotations

from dataclasses import replace

from stepweave.graph.modes import Mode
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph


def masked() -> Plan:
    """Two steps in three are masked. `draw` waits for `fill` in these only."""

    def begin(ctx: OpContext) -> None:
        ctx.write("kind", "masked" if ctx.step % 3 else "plain")

    def fill(ctx: OpContext) -> None:
        ctx.write("mask", ctx.step)

    def draw(ctx: OpContext) -> None:
        ctx.write("out", ctx.read("mask") if ctx.read("kind") == "masked" else -1)

    nodes = [
        Node("begin", (Op(writes=("kind",), run=begin, cost_us=1),)),
        Node("fill", (Op((Read("kind"),), ("mask",), run=fill, cost_us=9),), actor="masks"),
        Node("draw", (Op((Read("kind"), Read("mask")), ("out",), run=draw, cost_us=5),)),
    ]
    values = [Value("kind"), Value("mask", storage="slots", slots=2), Value("out")]
    modes = [Mode("masked"), Mode("plain", untouched={"draw.host": ("mask",)})]
    return compile_plan(
        StepGraph.build(nodes, values, modes=modes, told_by="kind", order="keep", name="masked")
    )


def unmasked() -> Plan:
    """The same, but that `draw` waits for `fill` in the plain steps: in the wrong ones."""
    plan = masked()
    return replace(plan, waits=tuple(replace(w, modes=w.modes and ("plain",)) for w in plan.waits))
