"""What a switch puts first of two ops, one of them or both of another plan than before it.

Around the switch each op has a clock (`SwitchRun`). An op that is further away than these look is
before whatever its own plan puts it before.
"""

from __future__ import annotations

from functools import cached_property

from ...graph.switch import Instance, Switch
from ...graph.verifier.switch_run import SwitchRun
from .clocks import Clocks

Done = tuple[dict[str, int], dict[str, int]]  # by plan and op the last step that is done


class Across:
    """The orders of one switch, from its programs, launches and waits alone.

    Steps count from the switch. `clocks`: those of the plan before and of the plan after.
    """

    def __init__(self, switch: Switch, clocks: tuple[Clocks, Clocks]) -> None:
        self._run, self._clocks = SwitchRun(switch), clocks
        self._last: dict[tuple[int, str], int] = {}  # that is looked at, by plan and op
        for at in self._run.clocks:
            known = self._last.get(at[:2], at.step)
            self._last[at[:2]] = max(known, at.step)
        self._known: dict[Instance, Done] = {}

    def before(self, source: Instance, target: Instance) -> bool:
        """Whether the one is done when the other begins."""
        clocks = self._clocks[source.part]
        return any(
            (source.op == op and source.step <= last)
            or clocks.before(source.op, source.step, op, last)
            for op, last in self._done(target)[source.part].items()
        )

    def serially(self, source: Instance, target: Instance) -> bool:
        """Whether the serial program has the one first."""
        return self._run.rank(source) < self._run.rank(target)

    @cached_property
    def settled(self) -> int | None:
        """From which step on all ops come after all that the plan before runs."""
        first, then = ([*plan.graph.vertices] for plan in self._run.switch.plans)
        for step in range(min(self._last.get((1, op), -1) for op in then) + 1):
            targets = [Instance(1, op, step) for op in then]
            if all(self.before(Instance(0, op, -1), at) for op in first for at in targets):
                return step
        return None

    def _done(self, target: Instance) -> Done:
        """What is done when an op begins, or an earlier step of one far behind the switch."""
        last = self._last.get(target[:2], target.step)
        target = target._replace(step=min(target.step, last))
        if target not in self._known:
            found: Done = ({}, {})
            if target in self._run.clocks:
                clock = self._run.clocks[target]
                for actor, place in zip(self._run.actors, clock.tolist(), strict=True):
                    for at in self._run.chains[actor][: place + 1]:
                        found[at.part][at.op] = at.step
            self._known[target] = found
        return self._known[target]
