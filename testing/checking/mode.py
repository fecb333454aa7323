"""Checking mode as an executor: another one, whose ops do what they declared and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...executors.exits import watched_exits
from ...executors.report import RunReport
from ...executors.run import Executor, executor_named
from ...executors.run_arguments import RunArguments
from ...graph.plan import Plan
from .strict import CheckedRun


@dataclass(frozen=True)
class Strict:
    """An executor that runs the plan on `executor`, a name or an executor, in checking mode.

    An op that does what it did not declare ends the run with a `NodeFailure` whose cause is a
    `ContractViolation`; the report's `unused` lists what ops declared in vain.
    """

    executor: str | Executor = "serial"

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        """Raises `StepweaveError` if `executor` is a name of none."""
        inner = self.executor
        execute = executor_named(inner) if isinstance(inner, str) else inner
        checked = CheckedRun(plan, given.states, given.keep, given.course)
        try:
            with watched_exits():
                report = execute(checked.plan, replace(given, course=checked.course))
        finally:
            checked.release()
        return replace(report, unused=checked.unused())
