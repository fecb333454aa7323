"""The one door for plans that the verifier has not passed, such as mutants.

`run`, the engine and the command line run verified plans only, and no option of theirs says
otherwise. To see what a broken plan does, say here that it is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..executors.report import RunReport
from ..executors.run import Executor, executor_named
from ..executors.run_arguments import RunArguments
from ..graph.plan import Plan


def run_unverified(plan: Plan, executor: str | Executor, given: RunArguments) -> RunReport:
    """What `run` would do with the plan if it did not verify it first.

    `given` has the other arguments of `run`. Raises what the run itself raises: with a broken plan
    perhaps nothing, and wrong data are returned.
    """
    chosen = executor_named(executor) if isinstance(executor, str) else executor
    return chosen(plan, given)


@dataclass(frozen=True)
class Unverified:
    """An executor that runs its own plan in place of the one that it is given.

    So an engine, whose plan is verified, can be seen to serve with a broken one.
    """

    plan: Plan
    executor: str | Executor = "serial"

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        return run_unverified(self.plan, self.executor, given)
