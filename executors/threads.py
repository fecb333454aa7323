"""Worker threads that stand for host threads and streams: real overlap on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph.plan import Plan
from .crew import run_on
from .report import RunReport
from .workers import Workers


def run_threads(
    plan: Plan,
    *,
    steps: int | None,
    states: Mapping[str, object],
    keep: Sequence[str],
    trace: bool,
    watchdog_s: float | None,
) -> RunReport:
    """Run the plan on one worker thread per actor."""
    return run_on(
        Workers(),
        plan,
        steps=steps,
        states=states,
        keep=keep,
        trace=trace,
        watchdog_s=watchdog_s,
    )
