"""Whether waits that do not take place in all modes are needed in no other, and known at both ends.

Nothing is taken from the planner here: for every two accesses that must be ordered, and every mode
of both of their steps in which they are made, a search goes step by step through the orders that
are there for certain. A wait that depends on a mode is there for certain only if it depends on the
mode of one of these two steps, and takes place in it; those of all other steps may be away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product

from ..modes import Mode
from ..plan import Plan, Wait
from ..step_graph import Vertex
from ..violation import Violation
from .firings import needs_of
from .leases import early_leases
from .order import Distances, Need, arcs_of, feeds_of, program_arcs
from .reports import access_of, goal_of
from .words import instant, later

Known = Mapping[int, str]  # the modes of steps, from step i on


def wrong_conditions(plan: Plan) -> Iterator[Violation]:
    """A report for each wait that an end does not know of, and each order that a mode lacks."""
    some = [wait for wait in plan.waits if wait.modes is not None]
    if not some:
        return
    writers = [v for v in plan.graph.vertices.values() if plan.graph.told_by in v.op.writes]
    if plan.graph.told_by is None or len(writers) != 1:
        yield _report("waits depend on modes, but no value tells the mode")
        return
    certain = _Certain(plan)
    unknown = [each for wait in some if (each := certain.unknown(wait, writers[0].name))]
    yield from map(_report, unknown)
    if not unknown:
        distance = Distances(list(plan.graph.vertices), arcs_of(plan.always))
        yield from early_leases(plan, distance)
        yield from _unbounded(plan, distance)
        yield from _missing(plan, certain)


def _report(problem: str) -> Violation:
    repair = "let the wait take place in every mode, or compile the graph again"
    return Violation("SW-MODE", f"{problem}\n  repair   {repair}", repair=repair)


class _Certain:
    """The orders of a plan, step by step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.after: dict[str, list[tuple[str, int]]] = {op: [] for op in plan.graph.vertices}
        arcs = [*arcs_of(plan.always)]
        for before, then, steps in arcs:
            self.after[before].append((then, steps))
        self.some = [wait for wait in plan.waits if wait.modes is not None]
        # A walk that goes back further than all arcs together does not come nearer.
        self.back = sum(max(0, -steps) for _, _, steps in arcs) + sum(
            max(0, -wait.distance) for wait in self.some
        )

    def reached(self, op: str, most: int, known: Known) -> set[tuple[str, int]]:
        """Which ops of which steps, to step i + `most`, come after `op` of step i."""
        seen: set[tuple[str, int]] = set()
        queue = deque([(op, 0)])
        while queue:
            at, step = queue.popleft()
            following = [(then, step + steps) for then, steps in self.after[at]]
            for wait in self.some:
                mode = known.get(step + wait.told)
                if wait.source == at and mode is not None and mode in (wait.modes or ()):
                    following.append((wait.target, step + wait.distance))
            for each in following:
                if -self.back <= each[1] <= most + self.back and each not in seen:
                    seen.add(each)
                    queue.append(each)
        return seen

    def unknown(self, wait: Wait, writer: str) -> str | None:
        """Which end of a wait may not know the mode that it depends on."""
        ops = self.plan.graph.vertices
        records, waits = (ops[op].launch or op for op in (wait.source, wait.target))
        told = self._from_writer(writer)
        if (records, -wait.told) not in told and (records != writer or wait.told > 0):
            return self._said(wait, records, -wait.told)
        if (waits, wait.distance - wait.told) not in told:
            return self._said(wait, waits, wait.distance - wait.told)
        return None

    def _said(self, wait: Wait, op: str, step: int) -> str:
        return (
            f"whether {wait.target!r} waits for {wait.source!r} depends on a mode that {op} of "
            f"step {later(step)} may not know: nothing puts it after the op that tells that of "
            "step i"
        )

    def _from_writer(self, writer: str) -> set[tuple[str, int]]:
        reach = max(abs(each) for wait in self.some for each in (wait.told, wait.distance)) * 2
        return self.reached(writer, reach, {})

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        return self.plan.graph.modes


def _missing(plan: Plan, certain: _Certain) -> Iterator[Violation]:
    """Orders that some modes ask for, and that are not there in them; one for each two ops."""
    found: dict[tuple[str, str], tuple[Need, Known]] = {}
    reached: dict[tuple[str, int, tuple[tuple[int, str], ...]], set[tuple[str, int]]] = {}
    for need, known in _asked(plan, certain):
        goal = goal_of(plan, need)
        if goal == need.before or (need.before, goal) in found:
            continue  # it launches the other itself, or is reported
        key = (need.before, need.distance, tuple(known.items()))
        if key not in reached:
            reached[key] = certain.reached(need.before, need.distance, known)
        if (goal, need.distance) not in reached[key]:
            found[need.before, goal] = (need, known)
    for need, known in found.values():
        yield _unordered(plan, need, known)


def _asked(plan: Plan, certain: _Certain) -> Iterator[tuple[Need, Known]]:
    """Every order with the modes of its two steps in which both of them touch what it is about."""
    ops = plan.graph.vertices
    for need in feeds_of(plan):
        yield need, {}
    for edge in plan.launch_order:  # what the plan states of launches holds in all modes
        yield Need("LAUNCH", "", 0, edge.source, edge.target, edge.distance), {}
    for u, v, d in program_arcs(plan):
        if (first := ops[u].launch) is not None and (then := ops[v].launch) is not None:
            yield Need("LAUNCH", "", 0, first, then, d), {}
    for need in needs_of(plan):
        value = plan.graph.values.get(need.value)
        if value is not None and value.storage == "fresh":
            yield need, {}
            continue
        for one, other in product(certain.modes, certain.modes):
            if need.distance == 0 and one.name != other.name:
                continue
            made = _made(plan, one, ops[need.before], need.hazard[2], need.value)
            if made and _made(plan, other, ops[need.after], need.hazard[0], need.value):
                yield need, {0: one.name, need.distance: other.name}


def _made(plan: Plan, mode: Mode, op: Vertex, letter: str, name: str) -> bool:
    """Whether an access is made in a mode. What an op writes it writes in all, be it nothing."""
    if letter == "W" and name in plan.graph.values:
        return True
    idle = op.node.name in mode.skips or name in mode.untouched.get(op.name, ())
    return not idle or name == plan.graph.told_by


def _unbounded(plan: Plan, distance: Distances) -> Iterator[Violation]:
    """Host threads that nothing but waits of some modes keeps near the ends of others."""
    ops = plan.graph.vertices
    for slow in (program[-1][0] for program in plan.actors.values() if program):
        for fast in (program[0][0] for program in plan.actors.values() if program):
            if ops[fast].side == "host" and distance(slow, fast) is None:
                yield _report(
                    f"only waits of some modes limit how far {fast!r} runs ahead of {slow!r}"
                )
                return


def _unordered(plan: Plan, need: Need, known: Known) -> Violation:
    steps = " and ".join(
        f"step {later(step)} in mode {mode!r}" for step, mode in sorted(known.items())
    )
    repair = "let a wait take place in these modes too, or compile the graph again"
    about = f" {need.value!r}" if need.value else ""
    return Violation(
        "SW-MODE",
        f"{need.hazard} race{about}: with {steps or 'any modes'}, nothing orders "
        f"{instant(need.before, need.after, need.distance)} for certain\n  repair   {repair}",
        need.hazard,
        need.value,
        access_of(plan, need.before, "touches", need.value, step=0),
        access_of(plan, need.after, "touches", need.value, step=need.distance),
        need.distance,
        repair=repair,
    )
