"""Mutants are what they say, and both oracles see all of them that are wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from stepweave.graph.errors import GraphError
from stepweave.graph.node import Node, Op, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from stepweave.testing.exploring import campaign as explore_mutants
from stepweave.testing.exploring.campaign import Campaign, campaign
from stepweave.testing.exploring.contracts import breaks_contract
from stepweave.testing.exploring.explorer import explore
from stepweave.testing.exploring.mutants import CLASSES, Mutant, mutants, races, reproved, what_runs
from stepweave.testing.graphs import random_step_graph
from tests.graph import oracle
from tests.graph.pipelines import decode, device_node, reads
from tests.graph.ranked import pipeline


def phased(order: str = "search") -> Plan:
    """A decode step whose commit has two phases: only the first reads what was copied back."""
    graph = decode()
    nodes = tuple(
        replace(
            node,
            host=(
                Op(reads("out"), ("settled",), phase="advance", cost_us=100),
                Op(reads("settled"), ("finished",), phase="finish", cost_us=400),
            ),
        )
        if node.name == "commit"
        else node
        for node in graph.nodes
    )
    values = [*graph.values.values(), Value("settled")]
    return compile_plan(
        StepGraph.build(nodes, values, graph.states, order="keep" if order == "keep" else "search")
    )


def of(plan: Plan, kind: str) -> list[Mutant]:
    return [mutant for mutant in mutants(plan) if mutant.kind == kind]


def test_every_wait_is_deleted_and_weakened() -> None:
    plan = compile_plan(decode())
    found = of(plan, "wait")
    assert len(found) == 2 * len(plan.waits)
    for index, wait in enumerate(plan.waits):
        gone, late = found[2 * index : 2 * index + 2]
        assert gone.plan is not None
        assert late.plan is not None
        assert set(gone.plan.waits) == set(plan.waits) - {wait}
        (weaker,) = set(late.plan.waits) - set(plan.waits)
        assert (weaker.source, weaker.target) == (wait.source, wait.target)
        assert weaker.distance == wait.distance + 1


def test_every_number_of_slots_above_one_is_shrunk() -> None:
    plan = compile_plan(decode())
    wanted = {(n, k - 1) for n, k in plan.slots.items() if k is not None and k > 1}
    assert wanted
    found = {
        (name, count)
        for mutant in of(plan, "slot")
        if mutant.plan is not None
        for name, count in mutant.plan.slots.items()
        if count != plan.slots[name] and mutant.plan.waits == plan.waits
    }
    assert found == wanted


def test_every_carry_is_made_older_and_newer() -> None:
    plan = compile_plan(decode())
    declared = {
        (name, read.name, read.carry)
        for mutant in of(plan, "carry")
        if mutant.declared is not None
        for name, vertex in mutant.declared.vertices.items()
        for read in vertex.op.reads
        if read not in plan.graph.vertices[name].op.reads
    }
    wanted = {
        (name, read.name, carry)
        for name, vertex in plan.graph.vertices.items()
        for read in vertex.op.reads
        if read.name in plan.graph.values
        for carry in (read.carry - 1, read.carry + 1)
        if carry >= 0
    }
    assert declared == wanted


def test_every_declared_access_is_dropped() -> None:
    plan = phased()
    lacking = set()
    for mutant in of(plan, "access"):
        assert mutant.declared is not None
        for name, vertex in plan.graph.vertices.items():
            mine = mutant.declared.vertices[name].op
            lacking |= {(name, str(read)) for read in vertex.op.reads if read not in mine.reads}
            lacking |= {(name, each) for each in vertex.op.writes if each not in mine.writes}
    wanted = {(n, str(read)) for n, v in plan.graph.vertices.items() for read in v.op.reads}
    wanted |= {(n, each) for n, v in plan.graph.vertices.items() for each in v.op.writes}
    assert lacking == wanted


def test_phases_are_moved_exchanged_and_shifted() -> None:
    said = [mutant.what for mutant in of(phased(), "phase")]
    assert any("commit.host.advance reads out, declared in commit.host.finish" in s for s in said)
    assert any("commit.host.finish reads settled, declared in commit.host.adv" in s for s in said)
    assert any("driver runs commit.host.finish before commit.host.advance" in s for s in said)
    assert "node 'forward' runs a step later" in said
    assert "node 'forward' runs a step earlier" in said
    kept = [mutant.what for mutant in of(phased("keep"), "phase")]
    assert not any("runs a step" in s for s in kept), "the author's offsets are not the planner's"


def test_every_mutant_is_over_the_true_graph_and_runs_as_no_other_of_its_declarations() -> None:
    plan = phased()
    seen = set()
    found = list(mutants(plan))  # kept, so that no two declarations share an id
    for mutant in found:
        assert mutant.true is plan
        if mutant.plan is not None:
            assert mutant.plan.graph is plan.graph
        if mutant.plan is not None and mutant.declared is not None:
            runs = (id(mutant.declared), what_runs(mutant.plan))
            assert runs not in seen, mutant.what
            seen.add(runs)
    assert len(seen) > 20


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_the_oracles_agree_on_every_mutant_of_random_plans(seed: int) -> None:
    try:
        plan = compile_plan(random_step_graph(seed, most_nodes=4))
    except GraphError:
        return
    found = campaign(plan)
    assert found.ok, "\n".join(map(str, found.disagreements))
    assert found.tallies["wait"].equivalent == 0, "a plan has no wait that it could do without"
    assert sum(tally.survived for tally in found.tallies.values()) == 0


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_the_oracles_agree_on_every_mutant_of_many_more_random_plans() -> None:
    for seed in range(2000):
        try:
            plan = compile_plan(random_step_graph(seed))
        except GraphError:
            continue
        found = campaign(plan, seeds=range(20))
        assert found.ok, f"seed {seed}: {found.disagreements[0]}"


def test_a_mutant_that_changes_nothing_is_proved_equivalent() -> None:
    """Stated for the false declarations, the proof is no proof; made anew, it is one."""
    found = Counter[bool]()
    for mutant in mutants(compile_plan(decode())):
        if mutant.plan is None or races(mutant.plan):
            continue
        found[violations(mutant.plan) == []] += 1
        verify(reproved(mutant.plan))
        assert oracle.unordered_pairs(mutant.plan) == []
    assert found[False] > 0, "some of them need the new proof"


def test_checking_mode_sees_every_dropped_access() -> None:
    plan = phased()
    assert not breaks_contract(Mutant("access", "nothing", plan, plan, plan.graph))
    for mutant in of(plan, "access"):
        assert breaks_contract(mutant), mutant.what


def test_a_refusal_is_no_mutant() -> None:
    plan = compile_plan(
        StepGraph.build(
            [
                device_node("a", "one", reads=reads("y@-1"), writes=("x",)),
                device_node("b", "two", reads=reads("x"), writes=("y",)),
            ],
            [Value("x", "device", "slots"), Value("y", "device", "slots")],
            order="keep",
        )
    )
    refused = [mutant for mutant in mutants(plan) if mutant.plan is None]
    assert [str(mutant.refused.code) for mutant in refused if mutant.refused] == ["SW-DEADLOCK"]
    assert "a.device reads y@-1, declared y" in refused[0].what
    assert campaign(plan).tallies["carry"].refused == 1


@pytest.mark.parametrize("blind", ["by_verifier", "by_explorer"])
def test_a_mutant_that_one_oracle_misses_fails_the_campaign(
    monkeypatch: pytest.MonkeyPatch, blind: str
) -> None:
    monkeypatch.setattr(explore_mutants, blind, lambda *_: "")
    found = campaign(compile_plan(decode()))
    assert not found.ok
    assert found.tallies["wait"].survived == found.tallies["wait"].total > 0
    said = str(found.disagreements[0])
    assert "no objection" in said
    assert "wait" in said


def test_a_campaign_counts_each_class() -> None:
    empty = Campaign()
    assert list(empty.tallies) == list(CLASSES)
    plan = compile_plan(
        StepGraph.build(
            [Node("a", (Op(writes=("x",)),)), Node("b", (Op(reads("x")),), actor="helper")],
            [Value("x")],
            order="keep",
        )
    )
    told: list[int] = []
    found = campaign(plan, progress=told.append)
    assert told == list(range(1, len(list(mutants(plan))) + 1))
    assert (found.tallies["wait"].killed, found.tallies["wait"].total) == (3, 3)  # one is a bound
    assert (found.tallies["access"].caught, found.tallies["access"].undeclared) == (2, 2)


def test_plans_of_several_ranks_are_left_to_the_verifier() -> None:
    """That ranks meet is in no schedule: sound plans would be told to have races."""
    plan = compile_plan(pipeline([100, 200], 2))
    assert len(plan.graph.ranks) > 1
    verify(plan)
    for explored in (campaign, explore):
        with pytest.raises(GraphError, match="which wait for each other where they meet"):
            explored(plan)
