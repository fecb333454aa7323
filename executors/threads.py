"""Worker threads that stand for host threads and streams: real overlap on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..graph.answers.older_first import older_first
from ..graph.plan import Plan
from .caller_runs import CallerRuns
from .concurrent import run_on
from .report import RunReport
from .run_arguments import RunArguments
from .workers import Workers

if TYPE_CHECKING:
    from ..backends.tape.tapes import Tapes
    from .capture import Captures

USUAL = 8
"""Steps of a shape that run as usual before one is recorded: recording takes as long as some 8 to
20 replays save, so shapes that come up a few times, while requests come and go, cost nothing."""


def run_threads(plan: Plan, given: RunArguments) -> RunReport:
    """Run the plan on one worker thread per actor."""
    return run_on(Workers(), plan, given)


@dataclass
class OnThreads:
    """The same, capturing segments of device ops and replaying them, as `capture.py` says.

    `pieces`: tokens of the largest step of which ops may have parts recorded. What was captured
    lives as long as this object, so use one for all runs of an engine.

    Streams on which ops meet other ranks keep their threads: that ranks do not block each other is
    proved of launches that return at once. So do all where operations are split among threads: each
    thread that runs one has some of its own, and with those of two the cores are too few.
    """

    pieces: int = 0
    captures: Captures | None = field(default=None, init=False)
    _tapes: Tapes | None = field(default=None, init=False, repr=False, compare=False)
    _callers: CallerRuns = field(default_factory=CallerRuns, init=False, repr=False, compare=False)

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        from torch import get_num_threads

        plans = given.plans(plan)
        if self.captures is None or not self.captures.fit(plans):
            from ..backends.tape.tapes import Tapes
            from .capture import Captures

            self._tapes = Tapes()
            self.captures = Captures(*plans, noted=False, usual=USUAL, largest=self.pieces)
            # What plans require of each other where one follows another is met by their own orders.
            self._callers.orders = {} if len(plans) > 1 else older_first(plan)
        keep = get_num_threads() > 1 or any(_meets_on_a_stream(each) for each in plans)
        callers = None if keep else self._callers
        workers = Workers(self._tapes, callers)
        return run_on(workers, plan, given, self.captures, callers)


def _meets_on_a_stream(plan: Plan) -> bool:
    return any(node.comm is not None and node.device for node in plan.graph.nodes)
