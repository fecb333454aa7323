"""Run a plan: the one entry point for all executors that compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from ..backends.executor_names import executor_names, streams_behind
from ..graph import arguments
from ..graph.plan import Plan
from ..graph.verifier.verified import verified, verified_switch
from .course import Course
from .errors import NodeFailure, StuckWait
from .firings import in_cycles, in_step, in_steps
from .recorder import Recorder
from .report import RunReport
from .run_arguments import RunArguments
from .serial import run_serial
from .threads import run_threads


class Executor(Protocol):
    def __call__(self, plan: Plan, given: RunArguments) -> RunReport: ...


EXECUTORS: Mapping[str, Executor] = MappingProxyType({"serial": run_serial, "threads": run_threads})
"""On host threads. An executor of a backend's name runs on that backend's streams."""


def executor_named(name: str) -> Executor:
    """The executor of that name; on streams, those of the current device.

    Raises `StepweaveError` for a name that is none.
    """
    if streams_behind(name) is None:
        return EXECUTORS[name]
    from .on_streams import OnStreams  # with torch, which the others do without

    return OnStreams(name)


def run(
    plan: Plan,
    *,
    executor: str | Executor = "serial",
    steps: int | None = None,
    states: Mapping[str, object] = MappingProxyType({}),
    keep: Sequence[str] = (),
    trace: bool | Recorder = False,
    watchdog_s: float | None = 60.0,
    course: Course | None = None,
    on_failure: Callable[[NodeFailure], None] | None = None,
) -> RunReport:
    """Run `steps` steps, or until an op calls `ctx.stop()`.

    A plan is verified before it first runs, and so are the switches of a `course` with their
    plans. Raises `UnsoundPlan`, before any op does, for one that does not pass
    (`testing.run_unverified` runs it all the same).
    `executor` is a name, or an executor itself, such as `stepweave.testing.Strict()`.
    Where nodes have rates, a run has whole cycles of steps, and the events of a traced one count
    cycles. `states` gives the objects behind the graph's states, `keep` names the values whose
    every version is returned. `trace`: whether the report has the times of all ops; or what notes
    them, for whoever reads it meanwhile. If an op raises, the run ends with a `NodeFailure`; if
    nothing moves for `watchdog_s` seconds while an actor waits, with a `StuckWait`. In both cases
    no thread is left. `course`: other plans that the run may go over to between two steps; then
    `plan` is the one that it is at. `on_failure` is called at once where an op fails, on its
    thread, while others may still be inside theirs.
    """
    arguments.a("run", "plan", plan, Plan, arguments.A_PLAN)
    if isinstance(executor, str):
        executor = executor_named(executor)
    elif not callable(executor):
        names = ", ".join(executor_names())
        raise arguments.wrong("run", "executor", f"one of {names}", executor, "SW-ARGUMENT")
    if steps is not None:
        arguments.whole("run", "steps", steps, 0, 1 << 62)
    arguments.mapping("run", "states", states, "state names to objects", "SW-ARGUMENT")
    keep = arguments.texts("run", "keep", keep)
    if watchdog_s is not None:
        arguments.number("run", "watchdog_s", watchdog_s, code="SW-ARGUMENT")
    recorder = Recorder() if trace is True else trace or None
    if course is not None:
        for switch in course.switches.values():
            verified_switch(switch)
    given = RunArguments(steps, states, keep, recorder, watchdog_s, course, on_failure)
    if plan.graph.declared is None:
        report = executor(verified(plan), given)
    else:
        try:
            report = in_steps(plan, executor(verified(plan), in_cycles(plan, given)), keep)
        except NodeFailure as failure:
            raise in_step(plan, failure) from failure.__cause__
        except StuckWait as error:
            error.add_note(f"steps are counted here in cycles of {plan.graph.cycle}")
            raise
    if course is not None:
        report = replace(report, legs=course.legs)
    if trace is True and recorder is not None:
        report = replace(report, events=recorder.latest.events())
    return report
