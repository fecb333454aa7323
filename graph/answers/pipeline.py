"""How long a step of a pipeline takes, and how many groups of rows it needs.

The stages of a pipeline are ranks, and rows go through them in groups: a group's next step begins
when its tokens are back at the first stage. A stage does one group at a time, so a step takes at
least as long as the slowest stage. And a group goes round once in as many steps as there are
groups. So the period is the greatest ratio of two kinds of cycles, as for every plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from .. import arguments


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Times in µs of a step: of each stage, and of all else on the way round."""

    stages_us: tuple[float, ...]
    round_us: float  # of one group through all stages and back, transfers and host included

    @staticmethod
    def of(stages_us: Sequence[float], *, comm_us: float = 0.0, host_us: float = 0.0) -> Pipeline:
        """`comm_us`: of all transfers; `host_us`: of what the host does between two steps.

        Raises `GraphError` for times that are none.
        """
        for us in (*stages_us, comm_us, host_us):
            arguments.number("Pipeline.of", "each time", us)
        arguments.whole("Pipeline.of", "the number of stages", len(stages_us), 1)
        return Pipeline(tuple(stages_us), sum(stages_us) + comm_us + host_us)

    @property
    def slowest_us(self) -> float:
        return max(self.stages_us)

    def period_us(self, groups: int) -> float:
        """The time per step with so many groups in flight."""
        return max(self.slowest_us, self.round_us / groups)

    def bubble(self, groups: int) -> float:
        """The share of a step for which the slowest stage has nothing to do."""
        period = self.period_us(groups)
        return 1.0 - self.slowest_us / period if period else 0.0

    @property
    def groups(self) -> int:
        """The least number of groups that keeps the slowest stage busy."""
        return max(1, ceil(self.round_us / self.slowest_us)) if self.slowest_us else 1

    def reason(self, groups: int) -> str:
        """Why a step takes as long as it does, in a sentence."""
        if self.round_us / groups > self.slowest_us:
            return (
                f"a group of rows takes {self.round_us:,.0f} µs for one round, and {groups} "
                f"of them are in flight; {self.groups} would keep the slowest stage busy"
            )
        stage = self.stages_us.index(self.slowest_us)
        return f"stage {stage}, the slowest, is always busy"


def feedback_capacity(stages: int, groups: int) -> int:
    """How many messages the channel from the last stage to the first must hold.

    Received where the tokens are needed; with less the plan is a deadlock.
    """
    return max(0, groups - stages + 1)
