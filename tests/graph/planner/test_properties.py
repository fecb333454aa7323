"""What every plan must satisfy, checked on random graphs against brute force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.graph.errors import DeadlockError, UnsoundPlan
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import is_bound, without_bounds
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from stepweave.graph.violation import RACE_CODES
from stepweave.testing.graphs import random_step_graph
from tests.graph import oracle
from tests.graph.strategies import examples, plans, step_graphs

RACES = {*RACE_CODES.values(), "SW-LAUNCH", "SW-HOST-ORDER", "SW-DEADLOCK"}


def planned(seeds: range) -> Iterator[tuple[int, Plan]]:
    for seed in seeds:
        try:
            yield seed, compile_plan(random_step_graph(seed))
        except DeadlockError:
            continue


# --- soundness --------------------------------------------------------------------------------


@examples(40)
@given(plans())
def test_every_plan_passes_the_verifier_and_orders_every_conflict(plan: Plan) -> None:
    verify(plan)
    assert oracle.unordered_pairs(plan) == []


@examples(18)
@given(plans(), st.integers(0, 1000))
def test_every_schedule_shows_each_op_what_the_serial_program_shows_it(
    plan: Plan, seed: int
) -> None:
    assert oracle.run_some_schedules(plan, seed, schedules=4) == []


def test_every_interleaving_of_tiny_graphs_gives_the_serial_histories() -> None:
    explored = 0
    for seed in range(60):
        graph = random_step_graph(seed, most_nodes=3)
        try:
            plan = compile_plan(graph)
            assert oracle.run_exhaustively(plan, steps=3, most=1500) == [], f"seed {seed}"
            explored += 1
        except (DeadlockError, oracle.TooMany):
            continue
    assert explored >= 15


@examples(40)
@given(step_graphs())
def test_a_graph_is_refused_exactly_if_its_unrolled_orders_have_a_cycle(
    graph: StepGraph,
) -> None:
    if not oracle.has_cycle(graph):
        compile_plan(graph)
        return
    with pytest.raises(DeadlockError) as caught:
        compile_plan(graph)
    assert sum(distance for _, distance in caught.value.cycle) <= 0


# --- minimality ---------------------------------------------------------------------------------


@examples(20)
@given(plans(most_nodes=5), st.integers(0, 1000))
def test_waits_are_the_transitive_reduction_of_the_unrolled_graph(plan: Plan, seed: int) -> None:
    waits = without_bounds(plan).waits
    assert {(w.source, w.target, w.distance) for w in waits} == oracle.reduced_waits(plan)


@examples(20)
@given(plans(most_nodes=5), st.randoms(use_true_random=False))
def test_the_order_in_which_waits_are_removed_does_not_matter(plan: Plan, random: Random) -> None:
    kept = oracle.needed_arcs(plan)
    order = sorted(kept)
    random.shuffle(order)
    for arc in order:
        if oracle.is_implied(plan, arc, kept - {arc}):
            kept = kept - {arc}
    assert kept == {(w.source, w.target, w.distance) for w in without_bounds(plan).waits}


@pytest.mark.parametrize("seeds", [70, pytest.param(160, marks=pytest.mark.nightly)])
def test_no_other_slots_give_a_shorter_period_fewer_waits_or_fewer_bytes(seeds: int) -> None:
    compared = 0
    for seed, plan in planned(range(seeds)):
        open_ = [
            value.name
            for value in plan.graph.values.values()
            if value.storage == "slots" and value.slots is None
        ]
        if not 1 <= len(open_) <= 2:
            continue
        for sizes in product(range(1, 5), repeat=len(open_)):
            try:
                other = compile_plan(plan.graph, slots=dict(zip(open_, sizes, strict=True)))
            except DeadlockError:
                continue
            assert slot_cost(plan) <= slot_cost(other), f"seed {seed}: {plan.slots}, {other.slots}"
            compared += 1
    assert compared >= 100


def slot_cost(plan: Plan) -> tuple[float, int, int]:
    sizes = [
        copies * plan.graph.values[name].nbytes
        for name, copies in plan.slots.items()
        if copies is not None
    ]
    return round(plan.period_us, 6), len(plan.waits), sum(sizes)


@examples(27)
@given(plans(most_nodes=4))
def test_the_period_is_the_greatest_ratio_of_all_cycles(plan: Plan) -> None:
    ratio = oracle.greatest_ratio(plan)
    if ratio is not None:
        assert plan.period_us == pytest.approx(ratio)


@pytest.mark.parametrize("seeds", [50, pytest.param(100, marks=pytest.mark.nightly)])
def test_no_other_order_of_the_driver_has_a_shorter_period_or_then_a_lower_latency(
    seeds: int,
) -> None:
    compared = refused = 0
    for seed in range(seeds):
        graph = random_step_graph(seed, most_nodes=4, order="search")
        if len({node.actor for node in graph.nodes}) == 1:
            ordered = best_of_all_orders(graph)
            compared, refused = compared + ordered, refused + (not ordered)
    assert compared >= 25
    assert refused >= 5


@pytest.mark.parametrize("seeds", [35, pytest.param(60, marks=pytest.mark.nightly)])
def test_no_other_order_that_keeps_launches_together_is_better(seeds: int) -> None:
    compared = parted = 0
    for seed in range(seeds):
        graph = with_bare_launches(seed)
        if not oracle.issued_as_one(graph):
            continue
        if best_of_all_orders(graph):
            compared += 1
            assert oracle.keeps_together(graph, program_of(compile_plan(graph)))
            apart = compile_plan(replace(graph, launches="apart"))
            parted += not oracle.keeps_together(graph, program_of(apart))
    assert compared >= 25
    assert parted >= 5, "without the constraint the search parts them"


def with_bare_launches(seed: int) -> StepGraph:
    """Four nodes of one thread: some only launch, and some on the host read what they make."""
    random = Random(seed)
    nodes: list[Node] = []
    for index in range(4):
        reads = [
            Read(f"v{other}", int(other >= index) + random.choice([0, 0, 1]))
            for other in range(4)
            if random.random() < 0.35
        ]
        work = Op(tuple(reads), (f"v{index}",), cost_us=random.choice([5.0, 40.0, 200.0]))
        if random.random() < 0.3:
            nodes.append(Node(f"n{index}", (work,)))
        else:
            launch = Op(tuple(reads[:1]) if random.random() < 0.2 else (), cost_us=0.5)
            stream = random.choice(["compute", "compute", "copy"])
            nodes.append(Node(f"n{index}", (launch,), (work,), stream=stream))
    values = [Value(f"v{index}", "pinned", "slots") for index in range(4)]
    return StepGraph.build(nodes, values, launches="together")


def best_of_all_orders(graph: StepGraph) -> bool:
    """Whether the graph can be ordered; if so, no order is better than the one of its plan.

    Where launches are to stay together, of the orders that keep them so.
    """
    costs = {op: vertex.op.cost_us or 0.0 for op, vertex in graph.vertices.items()}
    orders = oracle.Orders(graph, costs)
    allowed = (each for each in orders.programs() if oracle.keeps_together(graph, each))
    candidates = [orders.arcs(program) for program in allowed]
    possible = orders.is_possible(candidates)
    if not possible.any():
        with pytest.raises(DeadlockError):
            compile_plan(graph)
        return False
    plan = compile_plan(graph)
    verify(plan)
    assert not (orders.keeps_up(candidates, plan.period_us * (1 - 1e-9) - 1e-6) & possible).any()
    chosen = [orders.arcs(program_of(plan))]
    assert orders.keeps_up(chosen, plan.period_us + 1e-9).all()
    equals = orders.keeps_up(candidates, plan.period_us + 1e-9) & possible
    least = orders.latency([arcs for arcs, fits in zip(candidates, equals, strict=True) if fits],
                           plan.period_us + 1e-9).min(initial=np.inf)  # fmt: skip
    assert orders.latency(chosen, plan.period_us + 1e-9)[0] <= least + 1e-6
    return True


def program_of(plan: Plan) -> list[tuple[Node, int]]:
    """The nodes of a plan with one host thread, in the order in which it issues them."""
    (thread,) = {node.actor for node in plan.graph.nodes}
    nodes = [(plan.graph.vertices[op].node, at) for op, at in plan.actors[thread]]
    return list(dict.fromkeys(nodes))


# --- mutants ------------------------------------------------------------------------------------


@examples(20)
@given(plans())
def test_deleting_or_loosening_any_wait_is_caught_by_verifier_and_oracle(plan: Plan) -> None:
    for index, wait in enumerate(plan.waits):
        rest = plan.waits[:index] + plan.waits[index + 1 :]
        for waits in (rest, (*rest, replace(wait, distance=wait.distance + 1))):
            mutant = replace(plan, waits=waits)
            codes = {violation.code for violation in violations(mutant)}
            if is_bound(wait):
                assert codes == {"SW-WITNESS" if len(waits) == len(plan.waits) else "SW-BOUND"}
                continue
            assert codes & RACES
            assert oracle.unordered_pairs(mutant)


@examples(20)
@given(plans())
def test_running_with_one_slot_less_is_refused_and_a_race_exactly_if_the_oracle_finds_one(
    plan: Plan,
) -> None:
    for name, copies in plan.slots.items():
        if copies is not None and copies > 1:
            check(replace(plan, slots={**plan.slots, name: copies - 1}))


@examples(10)
@given(plans())
def test_reading_another_version_than_planned_is_refused_and_a_race_exactly_if_the_oracle_finds_one(
    plan: Plan,
) -> None:
    for graph in other_carries(plan.graph):
        check(replace(plan, graph=graph))


@examples(14)
@given(plans())
def test_exchanging_neighbours_of_an_actor_is_a_race_exactly_if_the_oracle_finds_one(
    plan: Plan,
) -> None:
    for actor, program in plan.actors.items():
        for index in range(len(program) - 1):
            swapped = list(program)
            swapped[index : index + 2] = swapped[index : index + 2][::-1]
            check(replace(plan, actors={**plan.actors, actor: tuple(swapped)}), unclaimed=True)


def check(mutant: Plan, unclaimed: bool = False) -> None:
    """The verifier refuses; it sees a race in just those mutants in which there is one."""
    codes = {violation.code for violation in violations(mutant)}
    if codes == {"SW-ACTORS"}:
        return  # no program at all
    assert codes or unclaimed, "the plan no longer states what is required"
    assert bool(codes & RACES) == bool(oracle.unordered_pairs(mutant))


def other_carries(graph: StepGraph) -> Iterator[StepGraph]:
    """The graph with one read a version newer or older."""
    for place, node in enumerate(graph.nodes):
        for side, ops in (("host", node.host), ("device", node.device)):
            for at, op in enumerate(ops):
                for index, read in enumerate(op.reads):
                    for carry in (read.carry - 1, read.carry + 1):
                        other = Read(read.name, carry)
                        if read.name in graph.states or carry < 0 or other in op.reads:
                            continue
                        reads = (*op.reads[:index], other, *op.reads[index + 1 :])
                        changed = (*ops[:at], replace(op, reads=reads), *ops[at + 1 :])
                        new = replace(
                            node,
                            host=changed if side == "host" else node.host,
                            device=changed if side == "device" else node.device,
                        )
                        nodes = (*graph.nodes[:place], new, *graph.nodes[place + 1 :])
                        yield replace(graph, nodes=nodes)


def test_without_any_one_wait_some_interleaving_of_a_tiny_graph_goes_wrong() -> None:
    killed = 0
    for seed in range(60):
        try:
            plan = compile_plan(random_step_graph(seed, most_nodes=3))
        except DeadlockError:
            continue
        for index in range(len(plan.waits)):
            mutant = replace(plan, waits=plan.waits[:index] + plan.waits[index + 1 :])
            try:
                assert any(oracle.run_exhaustively(mutant, steps, most=1500) for steps in (3, 5)), (
                    f"seed {seed}: {plan.waits[index]} is not missed"
                )
                killed += 1
            except oracle.TooMany:
                continue
    assert killed >= 40


def test_schedules_catch_most_deleted_waits_too() -> None:
    """Sampling is no proof, but what it never catches would mean an oracle that cannot see."""
    caught = deleted = 0
    for seed, plan in islice(planned(range(1000, 1100)), 16):
        for index in range(min(len(plan.waits), 2)):
            mutant = replace(plan, waits=plan.waits[:index] + plan.waits[index + 1 :])
            deleted += 1
            caught += bool(oracle.run_some_schedules(mutant, seed, schedules=6))
    assert caught >= 0.7 * deleted > 0, f"{caught} of {deleted}"


@examples(20)
@given(plans(), st.data())
def test_a_plan_that_claims_too_much_or_too_little_is_refused(
    plan: Plan, data: st.DataObject
) -> None:
    if not plan.edges:
        return
    index = data.draw(st.integers(0, len(plan.edges) - 1))
    edge = plan.edges[index]
    rest = plan.edges[:index] + plan.edges[index + 1 :]
    short = (edge.witness[0], (edge.target, edge.distance - 9))
    for edges in (
        rest,
        (*rest, replace(edge, distance=edge.distance + 1)),
        (*rest, replace(edge, witness=())),
        (*rest, replace(edge, witness=short)),
        (*rest, replace(edge, witness=((edge.source, 1), *edge.witness[1:]))),
    ):
        with pytest.raises(UnsoundPlan) as caught:
            verify(replace(plan, edges=edges))
        assert caught.value.code == "SW-WITNESS"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("forgotten", ["RAW", "WAR", "WAW"])
def test_a_planner_that_forgets_a_hazard_is_caught_by_verifier_and_oracle(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither shares the conflict rule with the planner, so neither forgets with it."""
    from stepweave.graph.planner import requirements

    whole = requirements.requirements

    def partial(
        graph: StepGraph, slots: Mapping[str, int | None]
    ) -> list[requirements.Requirement]:
        return [needed for needed in whole(graph, slots) if needed.hazard != forgotten]

    monkeypatch.setattr("stepweave.graph.planner.compile.requirements", partial)
    raced = 0
    for seed, plan in planned(range(120)):
        codes = {violation.code for violation in violations(plan)}
        races = oracle.unordered_pairs(plan)
        assert bool(codes & RACES) == bool(races), f"seed {seed}"
        raced += bool(races)
    assert raced >= 2
