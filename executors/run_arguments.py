"""The arguments of a run, as executors get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph.plan import Plan
    from .course import Course
    from .errors import NodeFailure
    from .recorder import Recorder


@dataclass(frozen=True)
class RunArguments:
    """All that an executor is told beside the plan; `run` says what each means."""

    steps: int | None = None  # None: until an op calls `stop`
    states: Mapping[str, object] = field(default_factory=dict)
    keep: Sequence[str] = ()  # values whose versions are returned
    trace: Recorder | None = None  # which notes when each op ran
    watchdog_s: float | None = 60.0
    course: Course | None = None  # other plans that the run may go on with
    on_failure: Callable[[NodeFailure], None] | None = None  # hears of it before the run ends

    def plans(self, plan: Plan) -> tuple[Plan, ...]:
        """All that a run may go on with which begins with this one."""
        return (plan,) if self.course is None else tuple(self.course.plans.values())
