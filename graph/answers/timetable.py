"""When each op of a plan runs in steady state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..plan import Plan
from ..planner.events import plan_edges
from ..planner.period import Delay, delays, period


@dataclass(frozen=True)
class Timetable:
    """When each op of step 0 starts and ends in steady state; step i is i periods later.

    Ops that take no time take a little here, and so may a period: `told_us` is that of the plan.
    """

    starts: Mapping[str, float]
    ends: Mapping[str, float]
    period_us: float
    told_us: float


def timetable(plan: Plan) -> Timetable:
    """Each op as early as its program, launch and waits allow, at the least period they allow."""
    ops = plan.graph.vertices
    most = max(plan.costs.values(), default=0.0) or 1.0
    cost = {op: plan.costs.get(op, 0.0) or most / 100 for op in ops}  # all ops can be seen
    edges = plan_edges(plan)
    every_us = max(plan.period_us, period(plan.graph, edges, cost).us)
    starts = _earliest(list(ops), delays(plan.graph, edges, cost), every_us)
    ends = {op: starts[op] + cost[op] for op in ops}
    for name, vertex in ops.items():
        if vertex.launch is not None:
            ends[name] = max(ends[name], ends[vertex.launch])
    return Timetable(starts, ends, every_us, plan.period_us or every_us)


def _earliest(ops: Sequence[str], found: Sequence[Delay], period_us: float) -> dict[str, float]:
    """The earliest starts at a period that no cycle exceeds: longest paths from any op."""
    starts = dict.fromkeys(ops, 0.0)
    for _ in ops:
        moved = False
        for delay in found:
            at = starts[delay.source] + delay.delay_us - delay.distance * period_us
            if at > starts[delay.target] + 1e-6:
                starts[delay.target], moved = at, True
        if not moved:
            break
    return starts
