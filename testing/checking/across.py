"""What a switch puts first of two ops, one of them or both of another plan than before it.

Around the switch each op has a clock (`SwitchRun`). An op that is further away than these look is
before whatever its own plan puts it before.

As within a plan (`clocks.py`), an order of two device ops counts if their launches are ordered too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from itertools import combinations, pairwise

from ...graph.switch import Instance, Switch
from ...graph.verifier.switch_run import SwitchRun
from .clocks import Clocks

Done = tuple[dict[str, int], dict[str, int]]  # by plan and op the last step that is done


class Across:
    """The orders of one switch, from its programs, launches and waits alone.

    Steps count from the switch. `clocks`: those of the plan before and of the plan after.
    """

    def __init__(self, switch: Switch, clocks: tuple[Clocks, Clocks]) -> None:
        self._run, self._clocks = _as_launched(switch), clocks
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

    @property
    def over(self) -> bool:
        """Whether all that the plan before runs is done when the switch says so."""
        return self.settled is not None and self.settled <= self._run.switch.over

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


def _as_launched(switch: Switch) -> SwitchRun:
    """The switch run with those orders of streams that their launches, by these orders, keep."""
    run = SwitchRun(switch)
    if all(map(_by_launch(run), run.arcs)):
        return run
    while {*(again := _Launched(switch, run)).arcs} != {*run.arcs}:
        run = again
    return run


def _by_launch(run: SwitchRun) -> Callable[[tuple[Instance, Instance]], bool]:
    """Whether an arc is one that hosts keep, or of two ops that are launched in that order."""

    def holds(arc: tuple[Instance, Instance]) -> bool:
        first, then = map(run.launch, arc)
        return first is None or then is None or first == then or run.known(first, then)

    return holds


class _Launched(SwitchRun):
    """The same, of streams that run their ops by what another run says of the launches."""

    def __init__(self, switch: Switch, run: SwitchRun) -> None:
        self._holds = _by_launch(run)
        super().__init__(switch)

    @cached_property
    def _whole(self) -> dict[str, list[Instance]]:
        """What each actor runs, were all in order."""
        return super()._chains()

    @cached_property
    def _loose(self) -> list[list[Instance]]:
        """What each stream runs, of those whose launches are not all in its order."""
        return [ops for ops in self._whole.values() if not all(map(self._holds, pairwise(ops)))]

    def _chains(self) -> dict[str, list[Instance]]:
        loose = [at for ops in self._loose for at in ops]
        kept = {actor: ops for actor, ops in self._whole.items() if ops not in self._loose}
        return kept | {f"{number} {at}": [at] for number, at in enumerate(loose)}

    def _awaited(self) -> dict[Instance, list[Instance]]:
        found: dict[Instance, list[Instance]] = defaultdict(list)
        for target, sources in super()._awaited().items():
            found[target] += [each for each in sources if self._holds((each, target))]
        for ops in self._loose:
            for first, then in filter(self._holds, combinations(ops, 2)):
                found[then].append(first)
        return found
