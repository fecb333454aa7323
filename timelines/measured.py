"""A traced run as a timeline: the events of real ops, and what of the plan held each of them.

The events are the only input, whoever noted them, and only their times are taken from them. A
clock follows the programs of the plan, skipped steps included, as it does to simulate them; where
it would say when an op runs it takes what was noted, and finds which of the ops that the plan
puts before it ended last. So simulated and measured runs are analysed by one code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from statistics import median
from types import MappingProxyType

from ..executors.report import RunReport
from ..graph.errors import StepweaveError, did_you_mean
from ..graph.plan import Plan
from .analysis import op_costs, step_lengths
from .simulated import Clock, program_of, simulate
from .timeline import Timeline


def measured(
    plan: Plan,
    report: RunReport,
    *,
    serial: bool = False,
    modes: Mapping[int, str] = MappingProxyType({}),
) -> Timeline:
    """The timeline of a run that was traced: `run(plan, trace=True)`.

    `serial`: it was the serial executor's, which heeds the reference order alone. `modes`: of each
    step that has one; waits that depend on it took place, or did not. The period is
    the median of the steady steps' lengths, or the mean of all where there are none. Raises
    `StepweaveError` for a run without events, or events of another plan.
    """
    vertices = plan.graph.vertices
    if not report.events:
        raise StepweaveError("the run has no events: run it with `trace=True`, and a step or more")
    times: dict[tuple[str, int], tuple[float, float]] = {}
    for event in report.events:
        if event.op not in vertices:
            hint = did_you_mean(event.op, vertices)
            raise StepweaveError(f"the run is not of this plan: it has no op {event.op!r}{hint}")
        # In whole ns: what began and ended at one time still does, in µs.
        times[event.op, event.step] = (round(event.start_s * 1e6, 3), round(event.end_s * 1e6, 3))
    steps = max(report.steps, 1 + max(event.step for event in report.events))
    clock = Clock(plan, program_of(plan, serial), steps, {}, Random(0), 0.0, None, times)
    clock.mode_of = modes.get
    clock.run()
    timeline = clock.timeline(0.0)
    begun: dict[str, int] = {}  # of a long run perhaps only the last steps were noted
    for op, step in times:
        begun[op] = min(step, begun.get(op, step))
    steady = timeline.steady
    whole = range(max([steady.start, *begun.values()]), steady.stop)
    timeline = replace(timeline, steady=whole)
    lengths = step_lengths(timeline)
    period = median(lengths) if lengths else timeline.seconds * 1e6 / steps
    return replace(timeline, period_us=period)


def planned_beside(
    plan: Plan,
    run: Timeline,
    *,
    serial: bool = False,
    costs: Mapping[str, float] | None = None,
    modes: Mapping[int, str] = MappingProxyType({}),
) -> Timeline:
    """What the plan would have taken: simulated, each op at its median cost in the run.

    `costs` (µs per op) go before these; `modes` as above. Hand-overs between threads are not in it,
    so the run is as much slower as they and the ops' unevenness make it.
    """
    named = {**op_costs(run), **(costs or {})}
    return simulate(plan, steps=run.steps, costs=named, serial=serial, mode_of=modes.get)


def replayed_us(
    plan: Plan,
    run: Timeline,
    *,
    serial: bool = False,
    modes: Mapping[int, str] = MappingProxyType({}),
) -> float:
    """Mean time per steady step if every op took what it took in this run, and hand-overs nothing.

    Between this and the measured mean lies what handing over costs; between this and the planned
    period, what comes of ops that do not take the same time in every step.
    """
    took = {(span.op, span.step): span.us for span in run.events}
    again = simulate(
        plan,
        steps=run.steps,
        takes=lambda turn: took.get((turn.op, turn.step), 0.0),
        serial=serial,
        mode_of=modes.get,
    )
    lengths = step_lengths(again)
    return sum(lengths) / len(lengths) if lengths else 0.0
