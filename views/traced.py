"""What a trace says, in one object: for the terminal, for programs and for the timeline page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..executors.report import RunReport
from ..graph.plan import Plan, Wait
from ..timelines.analysis import Analysis, Cause, analyse
from ..timelines.critical import Cycle, cycle
from ..timelines.measured import measured, planned_beside, replayed_us
from ..timelines.modes import ByMode, WordTime, by_mode, simulated_words
from ..timelines.simulated import simulate
from ..timelines.timeline import Timeline
from .words import count, protected

if TYPE_CHECKING:
    from ..requests.spans import RequestSpan
    from ..requests.step_counts import StepCount


@dataclass(frozen=True)
class Part:
    """Steps in a row that one plan ran, of a run that went from plan to plan.

    `run` numbers them from 0, from when the first of them began: so long after `begin_us`.
    """

    name: str
    plan: Plan
    steps: range
    run: Timeline
    begin_us: float


@dataclass(frozen=True)
class Trace:
    """A run beside its plan. `simulated`: there was no real run, and nothing beside it.

    `modes`: of a real run whose steps have modes; `words`: of a simulated plan with modes. `parts`:
    of a run that went from plan to plan; then all else is about the longest of them, whose steps
    are numbered from 0 and begin with `first` of the run.
    """

    plan: Plan
    run: Timeline
    analysis: Analysis
    cycle: Cycle | None  # the critical one
    planned: Timeline | None = None
    planned_cycle: Cycle | None = None
    replayed_us: float | None = None
    requests: tuple[RequestSpan, ...] = ()
    counts: tuple[StepCount, ...] = ()
    began_s: float = 0.0
    executor: str = "threads"
    modes: ByMode | None = None
    words: tuple[WordTime, ...] = ()
    parts: tuple[Part, ...] = ()
    first: int = 0

    @staticmethod
    def of_run(
        plans: Mapping[str, Plan],
        report: RunReport,
        *,
        requests: Sequence[RequestSpan] = (),
        counts: Sequence[StepCount] = (),
        executor: str = "threads",
    ) -> Trace:
        """The same of a run that may have gone from one of the plans to another."""
        given = report.parts or ((next(iter(plans)), range(report.steps)),)
        ran = {event.step for event in report.events}
        parts = [(name, steps) for name, steps in given if ran.intersection(steps)]
        if len(parts) < 2:
            plan = plans[parts[0][0] if parts else next(iter(plans))]
            return Trace.of(plan, report, requests=requests, counts=counts, executor=executor)
        pieces = []
        for name, steps in parts:
            own = report.of_steps(steps)
            run = measured(plans[name], own, serial=executor == "serial")  # none has modes
            begin_us = (own.began_s - report.began_s) * 1e6
            pieces.append(Part(name, plans[name], steps, run, begin_us))
        longest = max(pieces, key=lambda each: len(each.steps))
        first = longest.steps.start
        found = Trace.of(
            longest.plan,
            report.of_steps(longest.steps),
            requests=requests,
            counts=[
                each._replace(step=each.step - first)
                for each in counts
                if each.step in longest.steps
            ],
            executor=executor,
        )
        return replace(found, parts=tuple(pieces), first=first)

    @staticmethod
    def of(
        plan: Plan,
        report: RunReport,
        *,
        requests: Sequence[RequestSpan] = (),
        counts: Sequence[StepCount] = (),
        executor: str = "threads",
    ) -> Trace:
        """Raises `StepweaveError` for a run that was not traced, or is too short to judge."""
        serial, modes = executor == "serial", _modes_of(counts)
        run = measured(plan, report, serial=serial, modes=modes)
        analysis = analyse(run)  # first: a run without steady steps has no costs to plan with
        planned = planned_beside(plan, run, serial=serial, modes=modes)
        return Trace(
            plan=plan,
            run=run,
            analysis=analysis,
            cycle=cycle(run),
            planned=planned,
            planned_cycle=cycle(planned),
            replayed_us=replayed_us(plan, run, serial=serial, modes=modes),
            requests=tuple(requests),
            counts=tuple(counts),
            began_s=report.began_s,
            executor=executor,
            modes=by_mode(plan, run, modes, serial=serial),
        )

    @staticmethod
    def simulation(plan: Plan, steps: int) -> Trace:
        """The plan at its own costs. Raises `StepweaveError` where the steps are too few."""
        run = simulate(plan, steps=steps)
        words = tuple(simulated_words(plan, steps=steps))
        return Trace(plan, run, analyse(run), cycle(run), executor="simulated", words=words)

    @property
    def simulated(self) -> bool:
        """Whether there was no real run."""
        return self.planned is None

    @property
    def unit(self) -> str:
        """What is counted as a step: a cycle of several where nodes have rates."""
        return "step" if self.plan.graph.cycle == 1 else "cycle"

    def counted(self, steps: int) -> str:
        """`40 steps`, or `40 cycles of 4 steps`."""
        number = count(steps, self.unit)
        return number if self.unit == "step" else f"{number} of {self.plan.graph.cycle} steps"

    @property
    def predicted_us(self) -> float:
        """The period of the plan at the run's own costs."""
        return self.plan.period_us if self.planned is None else self.planned.period_us

    @property
    def error(self) -> float:
        """By how much of itself the period was predicted wrong: negative where too short."""
        return self.predicted_us / self.run.period_us - 1 if self.run.period_us else 0.0

    def why(self, cause: Cause) -> str:
        """What an actor idled for, in words."""
        if cause.by == "start":
            return "nothing before it: the run began"
        if cause.by == "order":
            own = self.plan.graph.vertices[cause.held].actor == cause.actor
            what = "hand-over after" if own else "the one thread ran"
            return f"{what} {cause.held}{_before(cause.distance)}"
        if cause.by == "launch":
            return f"launched late, by {cause.held}"
        if cause.by == "comm":
            return f"meets another rank: {cause.held}{_before(cause.distance)}"
        return f"waits for {cause.held}{_before(cause.distance)} ({self.protects(cause)})"

    def waited_us(self) -> dict[Wait, float]:
        """For each wait of the plan the time per step that its op waited for it."""
        waited = dict.fromkeys(self.plan.waits, 0.0)
        for wait in waited:
            for cause in self.analysis.causes:
                held = (cause.by, cause.held, cause.op, cause.distance)
                if held == ("wait", wait.source, wait.target, wait.distance):
                    waited[wait] += cause.us - cause.late_us
        return waited

    def protects(self, cause: Cause) -> str:
        """What the wait of a cause is for, in words."""
        for wait in self.plan.waits:
            if (wait.source, wait.target, wait.distance) == (cause.held, cause.op, cause.distance):
                return protected(wait)
        return "its wait"

    def to_json(self) -> dict[str, Any]:
        """All numbers of the summary; times are µs per step where nothing else is said.

        Where nodes have rates, what is called a step is a cycle of `cycle` steps.
        """
        found, overlap = self.analysis, self.analysis.overlap
        return {
            "graph": self.plan.graph.name,
            "executor": self.executor,
            "simulated": self.simulated,
            "steps": self.run.steps,
            "cycle": self.plan.graph.cycle,
            "steady": [found.steady.start, found.steady.stop],
            "period_us": {
                "predicted": round(self.predicted_us, 3),
                "measured": round(self.run.period_us, 3),
                "error": round(self.error, 5),
                "mean": round(found.mean_us, 3),
                "replayed": None if self.replayed_us is None else round(self.replayed_us, 3),
            },
            "modes": _modes(self.modes),
            **({"words": [each._asdict() for each in self.words]} if self.words else {}),
            "overlap": {
                "host_us": round(overlap.host_us, 3),
                "device_us": round(overlap.device_us, 3),
                "both_us": round(overlap.both_us, 3),
                "of_device": round(overlap.of_device, 5),
                "hidden": round(overlap.hidden, 5),
            },
            "actors": [
                {
                    "actor": each.actor,
                    "busy_us": round(each.busy_us, 3),
                    "idle_us": round(each.idle_us, 3),
                    "hand_over_us": round(each.late_us, 3),
                    "busy": round(each.busy, 5),
                }
                for each in found.actors
            ],
            "idle": [
                {
                    "actor": each.actor,
                    "op": each.op,
                    "after": each.held,
                    "by": each.by,
                    "distance": each.distance,
                    "count": each.times,
                    "us": round(each.us, 3),
                    "hand_over_us": round(each.late_us, 3),
                    "why": self.why(each),
                }
                for each in found.causes
            ],
            "ops": [
                {
                    "op": each.op,
                    "actor": each.actor,
                    "count": each.runs,
                    "median_us": round(each.median_us, 3),
                    "p90_us": round(each.p90_us, 3),
                    "mean_us": round(each.mean_us, 3),
                    "share": round(each.share, 5),
                }
                for each in found.ops
            ],
            "critical_cycle": {
                "measured": _cycle(self.cycle),
                "predicted": _cycle(self.planned_cycle) if self.planned is not None else None,
            },
            **({"plans": [_part(each) for each in self.parts]} if self.parts else {}),
            "first_step": self.first,
            "requests": [_request(each, self.began_s) for each in self.requests],
            "counts": [each._asdict() for each in self.counts],
        }


def _before(distance: int) -> str:
    """`, a step earlier`: which step's op it was, seen from the one that came after it."""
    if distance == 0:
        return ""
    steps = "a step" if abs(distance) == 1 else f"{abs(distance)} steps"
    return f" {steps} {'earlier' if distance > 0 else 'later'}"


def _modes_of(counts: Iterable[StepCount]) -> dict[int, str]:
    """By step, where it has one."""
    return {each.step: each.mode for each in counts if each.mode}


def _modes(found: ByMode | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rounded = [
        {key: round(figure, 3) if isinstance(figure, float) else figure for key, figure in row}
        for row in (each._asdict().items() for each in found.modes)
    ]
    return {
        "measured_us": round(found.measured_us, 3),
        "predicted_us": round(found.predicted_us, 3),
        "one_cost_us": round(found.one_cost_us, 3),
        "by_mode": rounded,
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "plan": part.name,
        "digest": part.plan.digest,
        "steps": [part.steps.start, part.steps.stop],
        "period_us": round(part.run.period_us, 3),
    }


def _cycle(found: Cycle | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "ops": [list(placed) for placed in found.ops],
        "repeats": found.repeats,
        "share": round(found.share, 5),
        "us": round(found.us, 3),
        "hand_over_us": round(found.late_us, 3),
    }


def _request(request: RequestSpan, began_s: float) -> dict[str, Any]:
    def at(moment: float | None) -> float | None:
        return None if moment is None else round((moment - began_s) * 1e6, 1)

    return {
        "id": request.id,
        "asked_us": at(request.asked_s),
        "submitted_us": at(request.submitted_s),
        "scheduled_us": at(request.scheduled_s),
        "first_token_us": at(request.first_token_s),
        "ended_us": at(request.ended_s),
        "prompt_tokens": request.prompt_tokens,
        "tokens": request.tokens,
        "finish_reason": request.finish_reason,
        "preemptions": request.preemptions,
        "steps": len(request.steps),
    }
