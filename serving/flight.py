"""The flight recorder: the last steps of a service, for whoever looks on while it serves."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..executors.recorder import Recorder
from ..executors.report import RunReport
from ..graph.plan import Plan
from ..requests.step_counts import StepCount, StepCounts

STEPS = 128
"""How many steps are remembered: enough for figures, and few to look through."""

FEW = 16
"""Steps in a row that are few for figures: longer ago there may be more."""


@dataclass(frozen=True)
class Stretch:
    """Steps in a row of one plan, each with a row, in which nobody waited for requests.

    In `report` and `counts` they are numbered from 0, as those of a run of their own; `first` is
    the number of step 0 in the run that they are part of, and `plan` the name of their plan.
    """

    plan: str
    first: int
    report: RunReport
    counts: tuple[StepCount, ...]


class FlightRecorder:
    """Notes when the ops of the last steps ran, and what each step had to do.

    The thread that drives pays two readings of the clock and an entry per op, and an entry per
    step, whoever reads. Any thread may read at any time.
    """

    def __init__(self, steps: int = STEPS) -> None:
        self.ops = Recorder(steps)
        self.counts = StepCounts(steps)

    def stretch(self, plans: Mapping[str, Plan], most: int = STEPS) -> Stretch | None:
        """The latest steps in a row that are complete, at most so many; None before there are any.

        Where those are few, the longest row of steps that is remembered; the latest, of several.
        Of an engine that goes from plan to plan, a row has steps of one of its `plans`.
        """
        times = self.ops.latest
        events, usual = times.events(), next(iter(plans))
        ran = Counter(event.step for event in events)
        by_plan = _by_plan(times.legs or ((0, usual),))
        counts = {
            each.step: each
            for each in self.counts.all()
            if not each.idle_s and ran[each.step] == len(plans[by_plan(each.step)].graph.vertices)
        }
        if not counts or times is not self.ops.latest:  # else the counts may be of the next run
            return None
        rows = _in_a_row(sorted(counts), by_plan)
        latest = rows[-1] if len(rows[-1]) >= FEW else max(reversed(rows), key=len)
        steps = latest[-most:]
        whole = RunReport(steps=steps.stop, events=events, seconds=0.0, ended_s=times.origin)
        return Stretch(
            by_plan(steps.start),
            steps.start,
            whole.of_steps(steps),
            tuple(counts[step]._replace(step=step - steps.start) for step in steps),
        )


def _by_plan(legs: Sequence[tuple[int, str]]) -> Callable[[int], str]:
    """The name of the plan that runs a step. `legs`: from which step on which plan."""
    begins = [step for step, _ in legs]
    return lambda step: legs[max(0, bisect_right(begins, step) - 1)][1]


def _in_a_row(steps: Iterable[int], plan: Callable[[int], str]) -> list[range]:
    """These steps, in order, as ranges without a hole, each of one plan."""
    found: list[range] = []
    for step in steps:
        if found and step == found[-1].stop and plan(step) == plan(found[-1].start):
            found[-1] = range(found[-1].start, step + 1)
        else:
            found.append(range(step, step + 1))
    return found
