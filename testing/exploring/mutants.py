"""Mutants of a plan: each leaves out, weakens or moves one thing that keeps it free of races.

A mutant is a plan of the *true* graph with orders, waits or slots that came about wrongly: edited,
or compiled from declarations that are not the true ones. Whoever judges it sees only what would
run, and the true declarations. A mutant that orders all that must be ordered all the same is
*equivalent*: `reproved` gives a witness for each requirement, and the verifier checks them.

The idea of judging tests by whether they notice small faults is that of DeMillo, Lipton and
Sayward 1978, "Hints on test data selection: help for the practicing programmer".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeVar, get_args

from ...graph.errors import GraphError
from ...graph.node import Node, Op, Read
from ...graph.plan import Placed, Plan, Wait
from ...graph.planner.bounds import is_bound
from ...graph.planner.compile import compile_plan, plan_for
from ...graph.planner.events import listing_programs, with_streams
from ...graph.planner.paths import closure, weight
from ...graph.planner.requirements import Requirement, launch_order, requirements
from ...graph.planner.waits import Frame, Synchronization
from ...graph.planner.witness import Prover
from ...graph.ranks import declared_name
from ...graph.step_graph import StepGraph
from ...graph.verifier.verify import violations
from ...graph.violation import Violation

T = TypeVar("T")
MutantClass = Literal["wait", "slot", "lease", "carry", "phase", "access"]
CLASSES: tuple[MutantClass, ...] = get_args(MutantClass)


@dataclass(frozen=True)
class Mutant:
    """One fault, and the plan that it leads to.

    `true` is the plan that it came from. `plan`: over the true graph; None where the planner itself
    refused to make one (`refused` is its error). `declared`: the false declarations that it was
    compiled from, if it was.
    """

    kind: MutantClass
    what: str
    true: Plan
    plan: Plan | None
    declared: StepGraph | None = None
    refused: GraphError | None = None


def mutants(plan: Plan) -> Iterator[Mutant]:
    """Every mutant of a plan, by class, in a fixed order.

    wait: each wait deleted, or weakened by a step (but for a bound, of which any will do). slot:
    each value with K > 1 slots given one fewer, with the waits of K. lease: each lease a step
    shorter, where users have classes. carry: each read of a value declared a step older, or newer.
    phase: each access of a phase declared in the phase beside it;
    each op exchanged with the next on its host thread; each node run a step later or earlier, where
    its order is the planner's choice.
    access: each declared access dropped. From false declarations come up to two plans: one in the
    order and with the slots of the original, one compiled anew.
    """
    yield from _waits(plan)
    yield from _slots(plan)
    yield from _leases(plan)
    yield from _carries(plan)
    yield from _phases(plan)
    yield from _exchanged(plan)
    yield from _shifted(plan)
    yield from _dropped(plan)


def races(plan: Plan) -> list[Violation]:
    """What the verifier has against the orders of a plan, whatever proof is written beside them."""
    return [v for v in violations(plan) if not v.code.startswith("SW-WITNESS")]


def reproved(plan: Plan) -> Plan:
    """The plan with a witness for every requirement of its graph, in place of what it stated.

    Only for a plan without `races`.
    """
    frame = Frame.of(plan.graph, plan.actors)
    weights = frame.weights.copy()
    for wait in plan.waits:
        at = frame.index[wait.source], frame.index[wait.target]
        weights[at] = min(weights[at], weight(wait.distance))
    needed = requirements(plan.graph, plan.slots)
    waited = [Requirement(w.source, w.target, w.distance, "RAW") for w in plan.waits]
    launches = tuple(launch_order(plan.graph, plan.actors, [*needed, *waited]))
    prover = Prover(frame, Synchronization(plan.waits, launches, weights, closure(weights)))
    return replace(plan, edges=prover.prove(needed), launch_order=prover.prove(launches))


# --- the classes --------------------------------------------------------------------------


def _waits(plan: Plan) -> Iterator[Mutant]:
    for number, wait in enumerate(plan.waits):
        others = (*plan.waits[:number], *plan.waits[number + 1 :])
        yield Mutant("wait", f"{_waiting(wait)}: deleted", plan, replace(plan, waits=others))
        if is_bound(wait):
            continue  # any limit will do
        late = replace(wait, distance=wait.distance + 1)
        yield Mutant(
            "wait",
            f"{_waiting(wait)}: for a step older",
            plan,
            replace(plan, waits=(*others, late)),
        )


def _slots(plan: Plan) -> Iterator[Mutant]:
    for name, count in plan.declared_slots.items():
        if count is not None and count > 1:
            sharing = (each for each in plan.slots if declared_name(plan.graph, each) == name)
            fewer = replace(plan, slots={**plan.slots, **dict.fromkeys(sharing, count - 1)})
            yield Mutant("slot", f"value {name!r} in {count - 1} slots, not {count}", plan, fewer)


def _leases(plan: Plan) -> Iterator[Mutant]:
    for number, lease in enumerate(plan.leases if plan.has_classes else ()):
        shorter = replace(lease, steps=lease.steps - 1)
        leases = (*plan.leases[:number], shorter, *plan.leases[number + 1 :])
        said = f"a key of {lease.state} passes from {lease.source} to {lease.target}"
        yield Mutant("lease", f"{said} a step sooner", plan, replace(plan, leases=leases))


def _carries(plan: Plan) -> Iterator[Mutant]:
    written = {name for op in plan.graph.vertices.values() for name in op.op.writes}
    for name, vertex in plan.graph.vertices.items():
        for read in vertex.op.reads:
            if read.name not in plan.graph.values or read.name not in written:
                continue
            for carry in (read.carry + 1, read.carry - 1):
                said = Read(read.name, carry)
                if carry < 0 or said in vertex.op.reads:
                    continue
                reads = tuple(said if each == read else each for each in vertex.op.reads)
                graph = _with_ops(plan.graph, {name: replace(vertex.op, reads=reads)})
                yield from _compiled(plan, graph, "carry", f"{name} reads {read}, declared {said}")


def _phases(plan: Plan) -> Iterator[Mutant]:
    vertices = plan.graph.vertices
    for names in _node_sides(plan.graph):
        for neighbours in pairwise(names):
            for here, there in (neighbours, neighbours[::-1]):
                source, target = vertices[here].op, vertices[there].op
                for read in source.reads:
                    if read not in target.reads:
                        moved = {
                            here: replace(source, reads=_without(source.reads, read)),
                            there: replace(target, reads=(*target.reads, read)),
                        }
                        said = f"{here} reads {read}, declared in {there}"
                        graph = _with_ops(plan.graph, moved)
                        yield from _compiled(plan, graph, "phase", said)
                for name in source.writes:
                    if name not in target.writes:
                        moved = {
                            here: replace(source, writes=_without(source.writes, name)),
                            there: replace(target, writes=(*target.writes, name)),
                        }
                        said = f"{here} writes {name}, declared in {there}"
                        graph = _with_ops(plan.graph, moved)
                        yield from _compiled(plan, graph, "phase", said)


def _exchanged(plan: Plan) -> Iterator[Mutant]:
    threads = listing_programs(plan.graph)
    for actor, program in plan.actors.items():
        if actor not in threads:
            continue
        for place, ((first, _), (second, _)) in enumerate(pairwise(program)):
            other = (*program[:place], program[place + 1], program[place], *program[place + 2 :])
            yield Mutant(
                "phase",
                f"{actor} runs {second} before {first}, not after it",
                plan,
                _with_programs(plan, {actor: other}),
            )


def _shifted(plan: Plan) -> Iterator[Mutant]:
    if plan.graph.order == "keep":
        return  # offsets are the author's
    for node in plan.graph.nodes:
        ops = set(node.op_names("host"))
        for shift, said in ((1, "later"), (-1, "earlier")):
            program = tuple(
                (op, offset + shift * (op in ops)) for op, offset in plan.actors[node.actor]
            )
            yield Mutant(
                "phase",
                f"node {node.name!r} runs a step {said}",
                plan,
                _with_programs(plan, {node.actor: program}),
            )


def _dropped(plan: Plan) -> Iterator[Mutant]:
    for name, vertex in plan.graph.vertices.items():
        for read in vertex.op.reads:
            op = replace(vertex.op, reads=_without(vertex.op.reads, read))
            graph = _with_ops(plan.graph, {name: op})
            yield from _compiled(plan, graph, "access", f"{name} reads {read}, undeclared")
        for written in vertex.op.writes:
            if written == plan.graph.told_by:
                continue  # steps have a mode because an op tells it
            if written in plan.graph.values and plan.graph.values[written].turn is not None:
                continue  # it shares slots with the versions of other firings: no outside has these
            op = replace(vertex.op, writes=_without(vertex.op.writes, written))
            graph = _with_ops(plan.graph, {name: op})
            if written in graph.values:  # somebody must write it: let it come from outside
                value = replace(graph.values[written], external=True)
                graph = replace(graph, values={**graph.values, written: value})
            yield from _compiled(plan, graph, "access", f"{name} writes {written}, undeclared")


# --- how they are made --------------------------------------------------------------------


def _compiled(plan: Plan, declared: StepGraph, kind: MutantClass, what: str) -> Iterator[Mutant]:
    """Plans from false declarations, over the true graph; at least one mutant."""
    refused: GraphError | None = None
    made: list[tuple[object, ...]] = []
    for said in ("order kept", "compiled anew"):
        try:
            if said == "order kept":
                found = plan_for(declared, plan.actors, plan.costs, dict(plan.slots))
            else:
                found = compile_plan(declared, costs=plan.costs)
        except GraphError as error:
            refused = error
            continue
        if what_runs(found) not in made:
            made.append(what_runs(found))
            false = replace(found, graph=plan.graph, leases=plan.leases)
            yield Mutant(kind, f"{what} ({said})", plan, false, declared)
    if refused is not None and not made:
        yield Mutant(kind, what, plan, None, declared, refused)


def what_runs(plan: Plan) -> tuple[object, ...]:
    """All of a plan that is acted on: equal for plans that run alike."""
    waits = sorted((w.source, w.target, w.distance, w.told, w.modes or ()) for w in plan.waits)
    actors = sorted((actor, program) for actor, program in plan.actors.items())
    slots = sorted(plan.slots.items(), key=lambda each: each[0])
    return tuple(actors), tuple(waits), tuple(slots), plan.leases


def _with_programs(plan: Plan, changed: Mapping[str, tuple[Placed, ...]]) -> Plan:
    """Other programs of host threads; streams run what is launched, in that order."""
    threads = {actor: plan.actors[actor] for actor in listing_programs(plan.graph)}
    return replace(plan, actors=with_streams(plan.graph, {**threads, **changed}))


def _with_ops(graph: StepGraph, changed: Mapping[str, Op]) -> StepGraph:
    def of(node: Node) -> Node:
        host = zip(node.op_names("host"), node.host, strict=True)
        device = zip(node.op_names("device"), node.device, strict=True) if node.device else ()
        return replace(
            node,
            host=tuple(changed.get(name, op) for name, op in host),
            device=tuple(changed.get(name, op) for name, op in device),
        )

    return replace(graph, nodes=tuple(map(of, graph.nodes)))


def _node_sides(graph: StepGraph) -> Iterator[tuple[str, ...]]:
    for node in graph.nodes:
        yield node.op_names("host")
        if node.device:
            yield node.op_names("device")


def _without(items: tuple[T, ...], gone: T) -> tuple[T, ...]:
    return tuple(item for item in items if item != gone)


def _waiting(wait: Wait) -> str:
    return f"{wait.target} waits for {wait.source} (+{wait.distance})"
