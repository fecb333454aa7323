"""Keys that pass between nodes of several rates: against the plain loop, firing by firing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from stepweave.graph.errors import DeadlockError
from stepweave.graph.node import Node
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import violations
from stepweave.testing.keyed_graphs import with_keys
from stepweave.testing.rated_graphs import random_rated_graph
from tests.graph import key_oracle
from tests.graph.rated_oracle import Keys, can_be_ordered, unordered
from tests.graph.short_leases import shortened

NIGHTLY = 3000


def graph_of(seed: int) -> StepGraph:
    return with_keys(random_rated_graph(Random(seed)), Random(seed + 1_000_003))


def judge(seed: int) -> Counter[str]:
    """Planner, verifier and oracle agree on a random graph and on all its mutants."""
    graph = graph_of(seed)
    orderable = can_be_ordered(graph)
    try:
        plan = compile_plan(graph)
    except DeadlockError:
        assert not orderable, f"seed {seed}: refused, and could be ordered"
        return Counter(refused=1)
    assert orderable, f"seed {seed}: planned, and cannot be ordered"
    if plan.graph.declared is None:
        return Counter({"without rates": 1})
    assert not violations(plan), f"seed {seed}: {violations(plan)[0]}"
    assert not unordered(plan), f"seed {seed}: {unordered(plan)[:2]}"
    keys = Keys(plan)
    assert not any(map(keys.meet, plan.leases)), f"seed {seed}"
    return (
        Counter(plans=1)
        + deleted(plan, seed)
        + shortened(plan, seed, lambda _, shorter: keys.meet(shorter))
        + given_away(plan, seed)
    )


def deleted(plan: Plan, seed: int) -> Counter[str]:
    """Every wait but a bound that is taken away is missed; one for keys is there for no less."""
    found: Counter[str] = Counter()
    for wait in plan.waits:
        if is_bound(wait):
            continue
        less = replace(plan, waits=tuple(other for other in plan.waits if other is not wait))
        assert violations(less), f"seed {seed}: the verifier misses {wait}"
        assert unordered(less) or early(less), f"seed {seed}: {wait} is needless"
        found["waits deleted"] += 1
        if key_oracle.is_lease_wait(wait):
            never = key_oracle.never_handed_on(key_oracle.without(plan, wait))
            assert never, f"seed {seed}: keys pass without {wait}"
            found["lease waits"] += 1
    return found


def early(plan: Plan) -> bool:
    return any(map(Keys(plan).meet, plan.leases))


def given_away(plan: Plan, seed: int) -> Counter[str]:
    """A firing that uses keys on behalf of others than its declared node does is found."""
    found: Counter[str] = Counter()
    for place, node in enumerate(plan.graph.nodes):
        other = _for_others(node)
        if other != node:
            nodes = (*plan.graph.nodes[:place], other, *plan.graph.nodes[place + 1 :])
            mutant = replace(plan, graph=replace(plan.graph, nodes=nodes))
            codes = {violation.code for violation in violations(mutant)}
            assert codes == {"SW-RATE"}, f"seed {seed}: {other.name}"
            found["given away"] += 1
    return found


def _for_others(node: Node) -> Node:
    def changed(ops: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(
            replace(op, classes=tuple((state, "somebody") for state, _ in op.classes)) for op in ops
        )

    return replace(node, host=changed(node.host), device=changed(node.device))


def test_keys_pass_between_firings_as_the_plain_loop_permits() -> None:
    found = sum((judge(seed) for seed in (3, 8, 13, 16)), Counter[str]())
    assert found["plans"] == 4
    assert found["leases shortened"] >= 12
    assert found["lease waits"] >= 1


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_keys_pass_between_firings_of_many_graphs_as_the_plain_loop_permits() -> None:
    found = sum((judge(seed) for seed in range(NIGHTLY)), Counter[str]())
    assert found["plans"] >= NIGHTLY // 3
