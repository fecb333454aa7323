"""Planning large graphs: the effort is bounded by counting, and what is skipped is as good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stepweave.graph.errors import DeadlockError
from stepweave.graph.plan import Plan
from stepweave.graph.planner import compile as compiler
from stepweave.graph.planner import order, paths, period, slots, sparse_paths
from stepweave.graph.planner.budget import Budget
from stepweave.graph.planner.compile import compile_plan, forget_orders
from stepweave.graph.planner.events import listing_programs, plan_edges, with_streams
from stepweave.graph.planner.order_insertion import inserted
from stepweave.graph.planner.order_space import OrderSpace
from stepweave.graph.planner.paths import FAR, HOP, adjacency, closure
from stepweave.graph.planner.policy_iteration import policy_cycle
from stepweave.graph.planner.protection import broken_without
from stepweave.graph.planner.requirements import Requirement, gate, requirements
from stepweave.graph.planner.trials import Trials
from stepweave.graph.planner.waits import Frame, Needs, fewest_waits, nearest_gates
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.large_graphs import chain, staged_chain, woven


def plans(count: int) -> Iterator[tuple[int, Plan]]:
    for seed in range(count):
        try:
            yield seed, compile_plan(random_step_graph(seed))
        except DeadlockError:
            continue


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many search nodes (or moves) and cells all budgets were charged, in all."""
    found: Counter[str] = Counter()
    take, compute = Budget.take, Budget.compute

    def counted_take(self: Budget, nodes: int = 1) -> None:
        found["nodes"] += nodes
        take(self, nodes)

    def counted_compute(self: Budget, cells: int) -> None:
        found["cells"] += cells
        compute(self, cells)

    monkeypatch.setattr(Budget, "take", counted_take)
    monkeypatch.setattr(Budget, "compute", counted_compute)
    return found


@pytest.mark.parametrize(
    "graph",
    [
        staged_chain(20),
        staged_chain(120),
        woven(150),
        *(
            pytest.param(graph, marks=pytest.mark.nightly)
            for graph in (
                woven(400),
                chain(400),
                staged_chain(400),
                woven(400, states=4),
                woven(150, reads=10),
            )
        ),
    ],
    ids=lambda graph: graph.name,
)
def test_the_effort_for_any_graph_is_bounded(graph: StepGraph, spent: Counter[str]) -> None:
    forget_orders()
    plan = compile_plan(graph)
    # Three criteria, two searches for the first; then the slots of the orders and of the plan.
    searches = 4 * order.CELLS + compiler.ORDER_CELLS
    assert spent["cells"] <= (searches + slots.CELLS) * 1.5  # what is begun is ended
    assert spent["nodes"] <= 2 * order.MOVES + 12 * order.NODES
    verify(plan)


def test_the_memory_for_a_batch_of_choices_is_bounded() -> None:
    for size in (10, 100, 1000):
        assert min(slots._BATCH, slots._BATCH_CELLS // size**2) * size**2 <= slots._BATCH_CELLS


def test_a_large_graph_gives_the_same_plan_twice() -> None:
    digests = set()
    for _ in range(2):
        forget_orders()
        digests.add(compile_plan(woven(24)).digest)
    assert len(digests) == 1


def test_closing_edge_by_edge_finds_the_same_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, plan in plans(60):
        index = {name: number for number, name in enumerate(plan.graph.vertices)}
        edges = [(index[u], index[v], d) for u, v, d, _ in plan_edges(plan)]
        weights = adjacency(len(index), edges)
        dense = closure(weights)
        sparse = sparse_paths.sparse_closure(weights, FAR)
        assert sparse is not None
        reached = dense < FAR // 2
        assert (reached == (sparse < FAR // 2)).all()
        assert (dense[reached] == sparse[reached]).all()


def test_taking_vertices_out_finds_the_paths_of_any_graph_or_its_negative_cycle() -> None:
    random, negative, whole = np.random.default_rng(0), 0, 0
    for edges_each, size in product((1, 2, 3, 5, 9), (1, 2, 7, 40)):
        for least in (-1, 0, 0):
            weights = paths.unreached(size)
            u, v = random.integers(0, size, (2, edges_each * size))
            weights[u, v] = random.integers(least, 4, edges_each * size) * HOP + 1
            dense, sparse = closure(weights), sparse_paths.sparse_closure(weights, FAR)
            assert (sparse is None) == bool((np.diagonal(dense) < 0).any())
            if sparse is None:
                negative += 1
            else:
                whole += 1
                assert (sparse == np.where(dense < FAR // 2, dense, FAR)).all()
    assert negative > 5
    assert whole > 20


def test_a_large_graph_without_an_order_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "DENSE", 0)
    refused = 0
    for seed in range(40):
        graph = random_step_graph(seed)
        try:
            verify(compile_plan(graph))
        except DeadlockError as error:
            refused += sum(distance for _, distance in error.cycle) <= 0
    assert refused > 5


def test_policy_iteration_finds_the_largest_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period, "_LARGE", 0)
    for seed, plan in plans(60):
        index = {name: number for number, name in enumerate(plan.graph.vertices)}
        costs = {op: float((seed + 7 * number) % 50) for op, number in index.items()}
        scaled = period.Scaled.of(index, period.delays(plan.graph, plan_edges(plan), costs))
        best = period.slowest_cycle(scaled)
        cycle = policy_cycle(scaled.arcs)
        assert cycle is not None
        total, steps = scaled.duration[cycle].sum(), scaled.distance[cycle].sum()
        assert Fraction(int(total), int(steps)) == best.ratio == period.largest_ratio(scaled)


def test_the_period_of_a_long_chain_takes_a_few_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compile_plan(chain(200), order="keep")
    calls = 0
    gaining = period._gaining

    def counted(*given: object) -> list[int] | None:
        nonlocal calls
        calls += 1
        return gaining(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(period, "_gaining", counted)
    found = period.period(plan.graph, plan_edges(plan), plan.costs)
    assert found.us == plan.period_us == 200_000.0
    assert calls <= period._TURNS + 3  # one for each node before


def test_what_a_wait_protects_is_what_is_unordered_without_it() -> None:
    compared = 0
    for _, plan in plans(80):
        frame = Frame.of(plan.graph, plan.actors)
        needs = Needs.of(frame, requirements(plan.graph, plan.slots))
        kept, gates = fewest_waits(frame, needs), frame.numbered(needs.gates)

        def paths_over(waits: list[tuple[int, int, int]], frame: Frame = frame) -> paths.Weights:
            added = adjacency(len(frame.index), waits)
            return closure(np.minimum(frame.weights, added))

        broken = broken_without(frame.paths, paths_over(kept), kept, gates)
        for wait, found in zip(kept, broken, strict=True):
            without = paths_over([each for each in kept if each != wait])
            assert found == [
                number for number, (u, v, d) in enumerate(gates) if without[u, v] >= (d + 1) * HOP
            ]
            compared += 1
    assert compared > 50


def test_an_inserted_order_keeps_the_period_that_it_was_made_for() -> None:
    made = 0
    for seed in range(60):
        graph = random_step_graph(seed, most_nodes=6, order="search")
        costs = period.op_costs(graph)
        needed = requirements(graph, dict.fromkeys(graph.values))
        try:
            order.check_orderable(graph, needed)
        except DeadlockError:
            continue
        space = OrderSpace.of(graph, needed, costs)
        for share in (1, 2):
            chosen = inserted(space, space.bound * share, Budget(100_000))
            if chosen is None:
                continue
            actors = with_streams(graph, space.programs(chosen.tolist()))
            plan = compiler.plan_for(graph, actors, costs, dict.fromkeys(graph.values))
            assert plan.period_us <= float(space.bound * share / space.scale) + 1e-6
            made += 1
    assert made > 40


def test_no_choice_of_slots_has_fewer_waits_than_the_bound() -> None:
    bounded = 0
    for seed in range(60):
        graph = random_step_graph(seed, most_nodes=5)
        pins = {name: None for name, value in graph.values.items() if value.storage == "fresh"}
        frame = Frame.of(graph, with_streams(graph, listing_programs(graph)))
        fixed = requirements(graph, {**dict.fromkeys(graph.values), **pins})
        try:
            fewest_waits(frame, Needs.of(frame, fixed))
        except DeadlockError:
            continue
        groups = slots._groups(frame, [name for name in graph.values if name not in pins])
        if not groups:
            continue
        gates = paths_of(frame, fixed)
        costs = period.op_costs(graph)
        trials = Trials.of(frame, gates, [group.gates for group in groups], costs)
        ranges = slots._ranges(trials, len(groups))
        low, high = (tuple(each[end] for each in ranges) for end in (0, -1))
        bound = trials.certain(low, high)
        for choice in {low, high}:
            some = np.array([choice], dtype=np.int64)
            if trials.possible(some)[0]:
                assert trials.waits(some)[0] >= bound
                bounded += bound > 0
    assert bounded > 10


def paths_of(frame: Frame, fixed: list[Requirement]) -> list[tuple[int, int, int]]:
    gates = [gate(frame.graph, requirement) for requirement in Needs.of(frame, fixed).requirements]
    return nearest_gates(frame.numbered(gates))
