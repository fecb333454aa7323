"""The flight recorder: the last steps of a service, for whoever looks on while it serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
    """Steps in a row, each with a row, in which nobody waited for requests.

    In `report` and `counts` they are numbered from 0, as those of a run of their own; `first` is
    the number of step 0 in the run that they are part of.
    """

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

    def stretch(self, plan: Plan, most: int = STEPS) -> Stretch | None:
        """The latest steps in a row that are complete, at most so many; None before there are any.

        Where those are few, the longest row of steps that is remembered; the latest, of several.
        """
        times = self.ops.latest
        events = times.events()
        ran = Counter(event.step for event in events)
        counts = {
            each.step: each
            for each in self.counts.all()
            if not each.idle_s and ran[each.step] == len(plan.graph.vertices)
        }
        if not counts or times is not self.ops.latest:  # else the counts may be of the next run
            return None
        rows = _in_a_row(sorted(counts))
        latest = rows[-1] if len(rows[-1]) >= FEW else max(reversed(rows), key=len)
        steps = latest[-most:]
        inside = [event for event in events if event.step in steps]
        begin = min(event.start_s for event in inside)
        end = max(event.end_s for event in inside)
        return Stretch(
            steps.start,
            RunReport(
                steps=len(steps),
                events=tuple(
                    event._replace(
                        step=event.step - steps.start,
                        start_s=event.start_s - begin,
                        end_s=event.end_s - begin,
                    )
                    for event in inside
                ),
                seconds=end - begin,
                ended_s=times.origin + end,
            ),
            tuple(counts[step]._replace(step=step - steps.start) for step in steps),
        )


def _in_a_row(steps: Iterable[int]) -> list[range]:
    """These steps, in order, as ranges without a hole."""
    found: list[range] = []
    for step in steps:
        if found and step == found[-1].stop:
            found[-1] = range(found[-1].start, step + 1)
        else:
            found.append(range(step, step + 1))
    return found
