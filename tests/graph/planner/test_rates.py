"""Nodes with rates: plans, the verifier and executors, against the plain loop firing by firing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from stepweave.executors.run import Executor, run
from stepweave.graph.errors import DeadlockError
from stepweave.graph.node import Node, Op
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.verifier.verify import violations
from stepweave.testing.checking.mode import Strict
from stepweave.testing.exploring.nodes import Interleaved
from stepweave.testing.rated_graphs import random_rated_graph

from ..rated_oracle import (
    can_be_ordered,
    plain_loop,
    recording,
    steps_of_cycle,
    unordered,
)

NIGHTLY = 3000


def planned(seed: int) -> Plan | None:
    """The plan of a random graph, or None where the plain loop allows no order either."""
    graph = random_rated_graph(Random(seed))
    orderable = can_be_ordered(graph)
    try:
        plan = compile_plan(graph)
    except DeadlockError:
        assert not orderable, f"seed {seed}: refused, and could be ordered"
        return None
    assert orderable, f"seed {seed}: planned, and cannot be ordered"
    return plan if plan.graph.declared is not None else None


def judge(seed: int) -> bool:
    """Planner, verifier and oracle agree on a random graph and on all its mutants."""
    plan = planned(seed)
    if plan is None:
        return False
    assert not violations(plan), f"seed {seed}: {violations(plan)[0]}"
    assert not unordered(plan), f"seed {seed}: {unordered(plan)[:2]}"
    bounds = {(edge.source, edge.target) for edge in plan.edges if edge.hazard == "BOUND"}
    for wait in plan.waits:
        less = replace(plan, waits=tuple(other for other in plan.waits if other is not wait))
        assert violations(less), f"seed {seed}: the verifier misses {wait}"
        if (wait.source, wait.target) not in bounds:
            assert unordered(less), f"seed {seed}: {wait} is needless"
    for what, mutant in doctored(plan):
        assert violations(mutant), f"seed {seed}: the verifier misses {what}"
    return True


def doctored(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with one rate, firing, version or turn changed, declared or unrolled."""
    graph = plan.graph
    assert graph.declared is not None
    for place, node in enumerate(graph.declared.nodes):
        for other in (
            replace(node, rate=node.rate + 1),
            replace(node, every=node.every + 1),
            replace(node, every=node.every * 2, first=node.first),
            replace(node, first=node.first + 1),
        ):
            nodes = (*graph.declared.nodes[:place], other, *graph.declared.nodes[place + 1 :])
            if other.first < other.every:
                declared = replace(graph.declared, nodes=nodes)
                yield f"{other}", replace(plan, graph=replace(graph, declared=declared))
    for place, node in enumerate(graph.nodes):
        rest = (*graph.nodes[:place], *graph.nodes[place + 1 :])
        yield f"without {node.name}", replace(plan, graph=replace(graph, nodes=rest))
        for op in (node.device or node.host)[-1:]:
            for read in op.reads:
                if read.name in graph.states:
                    continue
                later = replace(read, carry=read.carry + 1)
                reads = tuple(later if each == read else each for each in op.reads)
                if len(set(reads)) == len(op.reads):
                    changed = _with_last_op(node, replace(op, reads=reads))
                    nodes = (*graph.nodes[:place], changed, *graph.nodes[place + 1 :])
                    yield (
                        f"{node.name} reads {later}",
                        replace(plan, graph=replace(graph, nodes=nodes)),
                    )
    for name, value in graph.values.items():
        if value.turn is not None:
            values = {**graph.values, name: replace(value, turn=None)}
            yield f"{name} out of turn", replace(plan, graph=replace(graph, values=values))


def _with_last_op(node: Node, op: Op) -> Node:
    if node.device:
        return replace(node, device=(*node.device[:-1], op))
    return replace(node, host=(*node.host[:-1], op))


def test_plans_order_what_the_plain_loop_orders_and_no_wait_or_rate_is_idle() -> None:
    assert sum(judge(seed) for seed in range(7)) >= 3


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_plans_of_many_rated_graphs_are_sound_and_have_no_needless_wait() -> None:
    assert sum(judge(seed) for seed in range(NIGHTLY)) >= NIGHTLY // 3


def fewer_slots(plan: Plan) -> Iterator[Plan]:
    assert plan.graph.declared is not None
    for name in plan.graph.declared.values:
        mine = {k: n for k, n in plan.slots.items() if k.partition("#")[0] == name}
        if all(count is not None and count > 1 for count in mine.values()):
            less = {each: (count or 0) - 1 for each, count in mine.items()}
            yield replace(plan, slots={**plan.slots, **less})


def agree_on_fewer_slots(seed: int) -> int:
    plan = planned(seed)
    killed = 0
    for mutant in fewer_slots(plan) if plan else ():
        races = [each for each in violations(mutant) if each.hazard in ("WAR", "WAW", "RAW")]
        races = [each for each in races if each.code != "SW-WITNESS"]
        assert bool(races) == bool(unordered(mutant)), f"seed {seed}: {mutant.slots}"
        killed += bool(races)
    return killed


def test_one_slot_less_is_a_race_exactly_if_the_plain_loop_has_one() -> None:
    assert sum(agree_on_fewer_slots(seed) for seed in range(4)) >= 1


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_one_slot_less_is_a_race_exactly_if_the_plain_loop_has_one_on_many_graphs() -> None:
    assert sum(agree_on_fewer_slots(seed) for seed in range(NIGHTLY // 3)) >= NIGHTLY // 6


def runs_alike(seed: int) -> bool:
    graph = recording(random_rated_graph(Random(seed)))
    try:
        plan = compile_plan(graph)
    except DeadlockError:
        return False
    steps = 3 * steps_of_cycle(graph)
    versions, logs = plain_loop(graph, steps)
    executors: tuple[str | Executor, ...] = ("serial", "threads", Strict(), Interleaved(seed))
    for executor in executors:
        states: dict[str, list[object]] = {state: [] for state in graph.states}
        report = run(plan, executor=executor, steps=steps, states=states, keep=list(versions))
        assert (report.steps, states) == (steps, logs), f"seed {seed}, {executor}"
        assert {k: list(v) for k, v in report.kept.items()} == versions, f"seed {seed}, {executor}"
    return True


def test_every_executor_gives_what_the_plain_loop_gives() -> None:
    assert sum(runs_alike(seed) for seed in range(12)) >= 5


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_executor_gives_what_the_plain_loop_gives_on_many_graphs() -> None:
    assert sum(runs_alike(seed) for seed in range(NIGHTLY)) >= NIGHTLY // 3
