"""When each op of a plan runs in steady state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..plan import Plan
from ..planner.events import plan_edges


@dataclass(frozen=True)
class Timetable:
    """When each op of step 0 starts and ends in steady state; step i is i periods later."""

    starts: Mapping[str, float]
    ends: Mapping[str, float]
    period_us: float


def timetable(plan: Plan) -> Timetable:
    """Each op as early as its program, launch and waits allow, at the least period they allow."""
    ops = list(plan.graph.vertices)
    most = max(plan.costs.values(), default=0.0) or 1.0
    cost = {op: plan.costs.get(op, 0.0) or most / 100 for op in ops}  # all ops can be seen
    arcs = list(_delays(plan, cost))
    period, starts, cycle = plan.period_us, dict.fromkeys(ops, 0.0), True
    while cycle:  # Newton's iteration: a cycle that asks for more time sets the next period
        starts, ratio = _relax(ops, arcs, period)
        cycle, period = ratio > period, max(ratio, period)
    ends = {op: starts[op] + cost[op] for op in ops}
    for name, vertex in plan.graph.vertices.items():
        if vertex.launch is not None:
            ends[name] = max(ends[name], ends[vertex.launch])
    return Timetable(starts, ends, period)


def _delays(plan: Plan, cost: Mapping[str, float]) -> Iterator[tuple[str, str, int, float]]:
    """(u, v, d, delay): v of step i + d starts at least `delay` after u of step i starts."""
    vertices = plan.graph.vertices
    for u, v, d, kind in plan_edges(plan):
        latency = vertices[v].node.launch_latency_us if kind == "launch" else None
        yield u, v, d, cost[u] if latency is None else latency
        if kind != "launch" and (launch := vertices[u].launch) is not None:
            yield launch, v, d, cost[launch]  # a device op does not end before its launch


def _relax(
    ops: Sequence[str], arcs: Sequence[tuple[str, str, int, float]], period: float
) -> tuple[dict[str, float], float]:
    """Earliest starts at this period; and the ratio of a cycle that needs a longer one, or 0."""
    starts = dict.fromkeys(ops, 0.0)
    came: dict[str, tuple[str, int, float]] = {}
    for _ in range(len(ops) + 1):
        last = None
        for u, v, d, delay in arcs:
            at = starts[u] + delay - d * period
            if at > starts[v] + 1e-6:
                starts[v], came[v], last = at, (u, d, delay), v
        if last is None:
            return starts, 0.0
    assert last is not None, "otherwise the loop returned"
    for _ in ops:  # walk back into the cycle
        last = came[last][0]
    total, distance, here = 0.0, 0, last
    while True:
        here, d, delay = came[here]
        total, distance = total + delay, distance + d
        if here == last:
            break
    return starts, total / distance if distance > 0 else 0.0
