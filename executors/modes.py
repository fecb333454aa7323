"""Which mode each step of a run is in, once the op that decides it has written that.

A wait that takes place in some modes only asks here at both of its ends. The plan has the op before
both of them, so a step of which nothing is known then is not one of the run.
"""

from __future__ import annotations

from collections.abc import Callable

from ..graph.errors import GraphError, did_you_mean
from ..graph.modes import mode_writer
from ..graph.plan import Plan, Wait
from .context import Context, Memory

REMEMBERED = 1 << 12
"""Steps: none is further from another while both are under way."""

Run = Callable[[Context], None]


class ToldModes:
    """The modes of the steps of one run. One thread writes them, any may read."""

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self._names = {mode.name for mode in plan.graph.modes}
        self._value = plan.graph.told_by
        self._writer = None if self._value is None else mode_writer(plan.graph)
        self._cells = None if self._value is None else memory.cells[self._value].cells
        self._known: dict[int, str] = {}

    def telling(self, op: str, run: Run | None) -> Run | None:
        """The run of an op; that of the one that writes the mode notes it."""
        if op != self._writer:
            return run

        def run_and_tell(context: Context) -> None:
            if run is not None:
                run(context)
            self._note(context.step)

        return run_and_tell

    def done(self, op: str, step: int) -> None:
        """An op of which `telling` knows nothing has run."""
        if op == self._writer:
            self._note(step)

    def mode_of(self, step: int) -> str | None:
        """The mode of a step; None where it is not known."""
        return self._known.get(step)

    def takes_place(self, wait: Wait, step: int) -> bool:
        """Whether a wait takes place, of that step of its source."""
        return wait.takes_place(step, self._known.get)

    def _note(self, step: int) -> None:
        assert self._cells is not None, "only the op that writes it is asked"
        mode = self._cells[step % len(self._cells)]
        if mode not in self._names:
            raise GraphError(
                f"{self._value!r} of step {step} is {mode!r:.80}, which is no mode"
                f"{did_you_mean(str(mode), self._names)}. It must be the name of one.",
                code="SW-MODE",
            )
        self._known[step] = mode
        self._known.pop(step - REMEMBERED, None)
