"""Worker threads that stand for host threads and streams: real overlap on a CPU."""

from __future__ import annotations

from ..graph.plan import Plan
from .concurrent import run_on
from .report import RunReport
from .run_arguments import RunArguments
from .workers import Workers


def run_threads(plan: Plan, given: RunArguments) -> RunReport:
    """Run the plan on one worker thread per actor."""
    return run_on(
        Workers(),
        plan,
        given,
    )
