"""The oracle bites: for each thing it can find there is a case in which it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stepweave.graph.node import Node, Op, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.graphs import random_step_graph
from tests.graph import oracle
from tests.graph.pipelines import decode, device_node, reads


def copy_back() -> Plan:
    """A device op writes, a copy on another stream brings it to the host, the host reads."""
    return compile_plan(
        StepGraph.build(
            [
                device_node("make", "compute", writes=("x",)),
                device_node("copy", "side", reads=reads("x"), writes=("out",)),
                Node("use", (Op(reads("out")),)),
            ],
            [Value("x", "device", "slots", 1), Value("out", "pinned", "slots", 1)],
            order="keep",
        )
    )


def test_every_interleaving_of_a_sound_plan_is_right() -> None:
    assert oracle.run_exhaustively(copy_back(), steps=3) == []
    assert oracle.unordered_pairs(copy_back()) == []


@pytest.mark.parametrize("index", range(len(copy_back().waits)))
def test_some_interleaving_goes_wrong_without_a_wait(index: int) -> None:
    plan = copy_back()
    mutant = replace(plan, waits=plan.waits[:index] + plan.waits[index + 1 :])
    wrong = oracle.run_exhaustively(mutant, steps=3)
    assert {found.kind for found in wrong} == {"saw"}
    assert oracle.unordered_pairs(mutant)


def test_a_slot_overwritten_while_it_is_read_is_seen() -> None:
    plan = compile_plan(decode())
    mutant = replace(plan, slots={**plan.slots, "staging": 1})
    wrong = oracle.run_some_schedules(mutant, seed=0, schedules=20)
    assert "staging" in wrong[0].what
    assert ("staging", 0) in {pair.cell for pair in oracle.unordered_pairs(mutant)}


def test_a_wait_that_captures_no_record_is_seen() -> None:
    plan = copy_back()
    program = (("copy.host", 0), ("make.host", 0), ("use.host", 0))
    mutant = replace(plan, actors={**plan.actors, "driver": program})
    wrong = oracle.run_some_schedules(mutant, seed=0, schedules=20)
    assert "the wait does nothing" in " ".join(found.what for found in wrong)
    assert "unrecorded" in {pair.cell[0] for pair in oracle.unordered_pairs(mutant)}


def test_a_state_changed_in_the_wrong_order_is_seen() -> None:
    plan = compile_plan(
        StepGraph.build(
            [
                device_node("first", "a", writes=("state",)),
                device_node("second", "b", writes=("state",)),
            ],
            [],
            ["state"],
            order="keep",
        )
    )
    assert oracle.run_exhaustively(plan, steps=2) == []
    assert oracle.run_exhaustively(replace(plan, waits=()), steps=2)


def test_a_plan_that_waits_for_itself_is_seen() -> None:
    plan = compile_plan(
        StepGraph.build(
            [Node("a", (Op(writes=("x",)),)), Node("b", (Op(reads("x")),), actor="helper")],
            [Value("x")],
            order="keep",
        )
    )
    wait, _ = plan.waits  # the other keeps the driver from running ahead
    back = replace(wait, source=wait.target, target=wait.source)
    mutant = replace(plan, waits=(wait, back))
    assert {found.kind for found in oracle.run_some_schedules(mutant, 0, 1)} == {"stuck"}
    assert oracle.unordered_pairs(mutant)[0].cell == ("stuck", 0)


class Truncated(oracle.Unrolled):
    """Execution without padding: a step out of range is absent, its waits and records with it."""

    def exists(self, at: oracle.Instance) -> bool:
        return self.real(at)

    def program(self, actor: str) -> Iterator[oracle.Instance]:
        return (at for at in super().program(actor) if self.real(at))


def test_without_padding_the_distance_rule_is_false_at_the_ends_of_a_run() -> None:
    """So executors run every program in padding iterations too: skipped is not absent."""
    plan = compile_plan(random_step_graph(9, most_nodes=4))
    assert oracle.unordered_pairs(plan, steps=4) == []

    unrolled = Truncated(plan, steps=4, padding=0)
    order = oracle.Order(unrolled)
    instances = [at for actor in plan.actors for at in unrolled.program(actor)]
    assert [p for p in oracle.conflicts(unrolled, instances) if not order.before(*p[:2])]


def test_the_meaning_of_a_carried_read_is_the_version_before() -> None:
    graph = StepGraph.build(
        [Node("count", (Op(reads("n@-1"), ("n",)),))], [Value("n")], order="keep"
    )
    meaning = oracle.Meaning(graph, steps=3)
    at = oracle.Instance("count.host", 2)
    assert meaning.sees(at) == (meaning.wrote(oracle.Instance("count.host", 1), "n"),)
    assert meaning.sees(oracle.Instance("count.host", 0)) == (meaning.number("initial", "n"),)
