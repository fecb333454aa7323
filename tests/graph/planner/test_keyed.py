"""Keyed states on random graphs: planner and verifier against brute force on steps and keys."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from stepweave.graph.errors import DeadlockError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.verifier.verify import verify, violations
from stepweave.testing.keyed_graphs import random_keyed_graph
from tests.graph import key_oracle, oracle
from tests.graph.short_leases import shortened

SAMPLE = range(37, 60)


def planned(seed: int) -> Plan | None:
    try:
        return compile_plan(random_keyed_graph(seed))
    except DeadlockError:
        return None


def check(seed: int) -> Counter[str]:
    """All that is claimed of one graph; what was found in it."""
    graph = random_keyed_graph(seed)
    plan = planned(seed)
    assert (plan is None) == oracle.has_cycle(graph), f"seed {seed}: refused, or not"
    if plan is None:
        return Counter(refused=1)
    found = Counter(plans=1)
    verify(plan)
    assert oracle.unordered_pairs(plan) == [], f"seed {seed}"
    assert key_oracle.early(plan) == [], f"seed {seed}"
    assert key_oracle.early_at_random(plan, seed) == [], f"seed {seed}"
    found += (
        deleted(plan, seed)
        + shortened(plan, seed, lambda mutant, _: key_oracle.early(mutant))
        + dispensable(plan, seed)
    )
    return found


def deleted(plan: Plan, seed: int) -> Counter[str]:
    """Every wait but a bound that is taken away is missed by verifier and oracle."""
    found: Counter[str] = Counter()
    for index, wait in enumerate(plan.waits):
        if is_bound(wait):
            continue
        mutant = replace(plan, waits=plan.waits[:index] + plan.waits[index + 1 :])
        codes = {violation.code for violation in violations(mutant)}
        assert codes - {"SW-WITNESS", "SW-BOUND"}, f"seed {seed}: {wait} is not missed"
        seen = oracle.unordered_pairs(mutant) or key_oracle.early(mutant)
        assert seen, f"seed {seed}: the oracle does not miss {wait}"
        found["waits deleted"] += 1
    return found


def dispensable(plan: Plan, seed: int) -> Counter[str]:
    """A wait for keys alone makes a lease finite, costs no time, and cannot be nearer for free."""
    found: Counter[str] = Counter()
    assert key_oracle.never_handed_on(plan) == [], f"seed {seed}"
    own = [wait for wait in plan.waits if key_oracle.is_lease_wait(wait)]
    if not own:
        return found
    others = tuple(wait for wait in plan.waits if wait not in own)
    before = oracle.greatest_ratio(replace(plan, waits=others))
    for wait in own:
        mutant = key_oracle.without(plan, wait)
        assert key_oracle.never_handed_on(mutant), f"seed {seed}: {wait} is needless"
        found["lease waits"] += 1
        closer = key_oracle.nearer(plan, wait)
        ends = {(edge.source, edge.target): edge for edge in plan.edges if edge.hazard == "LEASE"}
        serial = [plan.graph.vertices[op] for op in (wait.source, wait.target)]
        at_least = serial[0].offset - serial[1].offset + (serial[0].position >= serial[1].position)
        if (wait.source, wait.target) not in ends or wait.distance == at_least or before is None:
            continue
        if not oracle.unordered_pairs(closer):  # it can be ordered: then it costs time
            after = oracle.greatest_ratio(closer)
            assert after is None or after > before + 1e-6, f"seed {seed}: {wait} can be nearer"
        found["lease waits nearer"] += 1
    after = oracle.greatest_ratio(plan)
    if before is not None and after is not None:
        assert after == pytest.approx(before), f"seed {seed}: waits for keys cost time"
    return found


def test_plans_with_keyed_states_are_sound_and_without_needless_waits() -> None:
    found = sum((check(seed) for seed in SAMPLE), Counter[str]())
    assert found["plans"] >= 15
    assert found["leases shortened"] >= 60
    assert found["lease waits"] >= 6
    assert found["waits deleted"] >= 30


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_thousands_of_plans_with_keyed_states_are_sound_and_without_needless_waits() -> None:
    found = sum((check(seed) for seed in range(1000, 4500)), Counter[str]())
    assert found["plans"] >= 2000
    assert found["refused"] >= 300
    assert found["lease waits"] >= 150
