"""Whether a switch from one plan to another is safe, by running its programs step by step.

The verifier's own way: it knows neither the requirements between the plans nor their distances. It
runs the actors around the switch as they block, with a clock for each: how far every other actor is
known to have come. Then it writes down who accesses which slot or state in the serial program, and
asks the clocks whether each access is known to be done when the next that conflicts with it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from ..errors import UnsoundPlan
from ..step_graph import StepGraph, Vertex
from ..switch import Instance, Switch
from ..violation import RACE_CODES, Access, Violation
from .order import Distances, arcs_of
from .switch_run import SwitchRun


def verify_switch(switch: Switch) -> None:
    """Return if the way from one plan to the other is sound, both of which are; else `UnsoundPlan`.

    `verified_switch` asks that of the plans too, of each once, however many switches it is in.
    """
    found = switch_violations(switch)
    if found:
        raise UnsoundPlan(
            "\n".join(map(str, found)), code=found[0].code, line=found[0].line, violations=found
        )


def switch_violations(switch: Switch) -> list[Violation]:
    """Everything that is wrong between two sound plans; empty if nothing is. Raises nothing."""
    wrong = [*_wrong_programs(switch)]
    if wrong:
        return wrong
    run = SwitchRun(switch)
    if run.stuck:
        at = run.stuck[0]
        return [_violation(switch, "SW-DEADLOCK", f"{at} waits for ever, at the switch", at, at)]
    races = [*_backward(run), *_unfed(run), *_races(run)]
    return races or [*_early(run), *_wrong_proofs(run)]


# --- the programs --------------------------------------------------------------------------------


def _wrong_programs(switch: Switch) -> Iterator[Violation]:
    """Each actor must run all of either plan in its order, padding and all."""
    for part, plan in enumerate(switch.plans):
        table = Distances(list(plan.graph.vertices), list(arcs_of(plan)))
        least = [table(u, v) for u, v in product(plan.graph.vertices, repeat=2)]
        reach = max(0, *(-each for each in least if each is not None))
        edges = set()
        for actor, program in plan.actors.items():
            own = [at for at in switch.programs.get(actor, ()) if at.part == part]
            rounds = len(own) // len(program)
            begin = switch.enters - rounds if part else switch.leaves + 1
            edges.add(begin if part else begin + rounds)
            iterations = range(begin, begin + rounds)
            if own != [Instance(part, op, t - at) for t in iterations for op, at in program]:
                yield _misplaced(part, actor, "is not the program of its plan")
            for op, offset in program:
                if part == 0 and begin + rounds - offset < reach:
                    yield _misplaced(part, op, f"ends less than {reach} steps after the switch")
                if part == 1 and begin - offset > -reach:
                    yield _misplaced(part, op, f"begins less than {reach} steps before the switch")
        if len(edges) > 1:
            yield _misplaced(part, plan.graph.name, "does not begin and end alike on all actors")
    for actor, ops in switch.programs.items():
        if not all(actor in switch.plans[at.part].actors for at in ops):
            yield _misplaced(0, actor, "has ops of a plan that does not know it")

    listed = {at for ops in switch.programs.values() for at in ops}
    for wait in switch.waits:
        for at in (wait.source, wait.target):
            if at not in listed:
                yield _misplaced(at.part, str(at), "is in a wait, but not where the two plans meet")


def _misplaced(part: int, what: str, problem: str) -> Violation:
    which = "before" if part == 0 else "after"
    return Violation("SW-ACTORS", f"the part of {what!r} of the plan {which} {problem}")


# --- conflicts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Conflict:
    source: Instance
    target: Instance
    hazard: str
    value: str


def _backward(run: SwitchRun) -> Iterator[Violation]:
    """Ops that the serial program has in a step of the plan after before an earlier step."""
    switch = run.switch
    for op in switch.before.graph.vertices.keys() & switch.after.graph.vertices.keys():
        last, first = Instance(0, op, -1), Instance(1, op, 0)
        if run.rank(first) < run.rank(last):
            problem = f"{first} comes before {last} in the serial program of the switch"
            yield _violation(switch, "SW-SWITCH", problem, last, first)


def _races(run: SwitchRun) -> Iterator[Violation]:
    """Accesses of both plans to one place of memory that nothing orders."""
    told = set()
    for each in (*_values(run), *_states(run)):
        cause = (each.source.op, each.target.op, each.value)
        if run.known(each.source, each.target) or cause in told:
            continue
        told.add(cause)
        sides = run.vertex(each.source).side, run.vertex(each.target).side
        yield _violation(
            run.switch,
            RACE_CODES[each.hazard, sides[0], sides[1]],
            f"{each.hazard} race on {each.value!r} at the switch: {each.target} may start before "
            f"{each.source} is done\n  repair   let {each.target} wait for {each.source}, once",
            each.source,
            each.target,
            each.hazard,
            each.value,
        )


def _values(run: SwitchRun) -> Iterator[_Conflict]:
    """Each version that the other plan reads: written before, and not written over until then."""
    first, then = run.switch.plans
    writer = {name: v.name for v in first.graph.vertices.values() for name in v.op.writes}
    for at in run.place:
        if at.part == 0 or not run.runs(at):
            continue
        for read in run.vertex(at).op.reads:
            wanted = at.step - read.carry
            value = first.graph.values.get(read.name)
            if wanted >= 0 or value is None or read.name not in writer or value.external:
                continue
            if then.graph.values[read.name].external:
                continue
            wrote = Instance(0, writer[read.name], wanted)
            yield _Conflict(wrote, at, "RAW", read.name)
            copies = first.slots.get(read.name)
            for step in range(wanted + 1, 0):
                if copies is not None and (step - wanted) % copies == 0:
                    yield _Conflict(at, Instance(0, writer[read.name], step), "WAR", read.name)


def _states(run: SwitchRun) -> Iterator[_Conflict]:
    """Of each two ops, each instance with the nearest of the other plan's that comes later."""
    first, then = (plan.graph for plan in run.switch.plans)
    steps: dict[tuple[int, str], list[Instance]] = defaultdict(list)
    for at in sorted(run.place, key=lambda at: at.step):
        if run.runs(at):
            steps[at.part, at.op].append(at)
    for state in first.states.keys() & then.states.keys():
        pairs = product(_touching(first, state), _touching(then, state))
        for (u, one), (v, other) in pairs:
            if one == other == "R" or u.op.class_of(state) != v.op.class_of(state):
                continue
            mine, theirs = steps[0, u.name], steps[1, v.name]
            for early, late, kinds in ((mine, theirs, one + other), (theirs, mine, other + one)):
                for at in early:
                    later = (each for each in late if run.ranks[each] > run.ranks[at])
                    nearest = next(later, None)
                    if nearest is not None:
                        yield _Conflict(at, nearest, f"{kinds[1]}A{kinds[0]}", state)


def _touching(graph: StepGraph, state: str) -> list[tuple[Vertex, str]]:
    found = []
    for vertex in graph.vertices.values():
        if state in vertex.op.writes:
            found.append((vertex, "W"))
        if any(read.name == state for read in vertex.op.reads):
            found.append((vertex, "R"))
    return found


def _unfed(run: SwitchRun) -> Iterator[Violation]:
    """Streams are launched on in their order, and waits are enqueued after their records."""
    pairs = [(u, v, "SW-LAUNCH") for ops in run.chains.values() for u, v in pairwise(ops)]
    pairs += [(wait.source, wait.target, "SW-HOST-ORDER") for wait in run.switch.waits]
    for u, v, code in pairs:
        first, second = run.launch(u), run.launch(v)
        if u.part == v.part or first is None or second is None or first == second:
            continue
        if not run.known(first, second):
            yield _violation(
                run.switch, code, f"{v} may be launched before {u} at the switch", u, v
            )
    for wait in run.switch.waits:
        source, target = run.vertex(wait.source), run.vertex(wait.target)
        if source.side == "host" and target.side == "device":
            problem = f"{wait.target} is on a stream, which cannot wait for {wait.source}"
            yield _violation(run.switch, "SW-HOST-ORDER", problem, wait.source, wait.target)


# --- what a switch says of itself ----------------------------------------------------------------


def _early(run: SwitchRun) -> Iterator[Violation]:
    """Keys that change hands too soon, and a switch that is said to be over too soon."""
    switch = run.switch
    stated = {(each.state, each.source, each.target): each.steps for each in switch.leases}
    first, then = (plan.graph for plan in switch.plans)
    for name in first.states.keys() & then.states.keys():
        if first.states[name].keys is None:
            continue
        for (u, one), (v, other) in product(_touching(first, name), _touching(then, name)):
            steps = stated.get((name, u.op.class_of(name), v.op.class_of(name)))
            if one == other == "R":
                continue
            for i in range(-(steps or 0) - 2, 0):
                source = Instance(0, u.name, i)
                target = Instance(1, v.name, max(0, i + (steps or 0)))
                serial = target in run.ranks and run.ranks[source] < run.ranks[target]
                if steps is None or not serial or not run.known(source, target):
                    problem = f"a key of {name!r} passes to {target} too soon after {source}"
                    yield _violation(switch, "SW-LEASE", problem, source, target, "LEASE", name)
                    return
    ended = [Instance(0, op, -1) for op in first.vertices]
    ended += [each.target for each in _values(run) if each.hazard == "RAW"]
    for source, after in product(dict.fromkeys(ended), then.vertices):
        target = Instance(1, after, switch.over)
        if target not in run.place or not _reached(run, source, target):
            problem = f"{target} may start before {source} is done, and the switch is said over"
            yield _violation(switch, "SW-BOUND", problem, source, target)
            return


def _reached(run: SwitchRun, source: Instance, target: Instance) -> bool:
    whose, place = run.place[source]
    return bool(run.clocks[target][whose] >= place)


def _wrong_proofs(run: SwitchRun) -> Iterator[Violation]:
    """Witnesses that are no chains of orders which the switch keeps."""
    for each in run.switch.crossings:
        chain = each.witness
        ends = len(chain) > 1 and (chain[0], chain[-1]) == (each.source, each.met_at)
        if not ends or not all(_next(run, u, v) for u, v in pairwise(chain)):
            problem = f"the witness of {each} is no chain of orders of the switch"
            yield _violation(run.switch, "SW-WITNESS", problem, each.source, each.target)
            return


def _next(run: SwitchRun, u: Instance, v: Instance) -> bool:
    if u not in run.place or v not in run.place:
        return True  # further away than this looks: the clocks have spoken
    if run.place[u][0] == run.place[v][0]:
        return run.place[u][1] < run.place[v][1]
    return u in run.awaited[v]


def _violation(
    switch: Switch,
    code: str,
    problem: str,
    source: Instance,
    target: Instance,
    hazard: str = "",
    value: str = "",
) -> Violation:
    accesses = []
    for at in (source, target):
        vertex = switch.plans[at.part].graph.vertices[at.op]
        node = vertex.node
        accesses.append(
            Access(node.name, at.op, vertex.actor, "touches", value, node.line, at.step)
        )
    return Violation(code, problem, hazard, value, accesses[0], accesses[1])
