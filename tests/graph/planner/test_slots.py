"""How many slots a value gets: least period, fewest waits, fewest bytes, earlier declared first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from stepweave.graph.errors import DeadlockError, GraphError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing import decode_step
from stepweave.testing.graphs import random_step_graph
from tests.graph.build import device, host, op, staged, value, waits


def looped(slots: int | None = None) -> StepGraph:
    """A host that fills a buffer for a stream, and sees the result one step later."""
    return StepGraph.build(
        [
            host("commit", op("result@-1", cost=10)),
            device("work", op(writes="staging", cost=50), op("staging", "result", cost=100)),
        ],
        [value("staging", "pinned", slots), value("result", "pinned")],
        order="keep",
    )


def test_a_value_gets_the_slots_at_which_nothing_has_to_guard_it() -> None:
    plan = compile_plan(looped())
    assert plan.slots == {"staging": 1, "result": 1}
    assert waits(plan) == ["work.device → commit.host +1"]


def test_the_decode_step_doubles_only_what_two_steps_touch_at_once() -> None:
    def doubled(depth: int) -> set[str]:
        slots = compile_plan(decode_step(depth)).slots
        assert set(slots.values()) <= {None, 1, 2}
        return {name for name, count in slots.items() if count == 2}

    carried = {"progress", "drafts"}  # the op that writes a version reads the one before
    assert doubled(1) == carried
    assert doubled(2) == {"staging", *carried}


def test_fresh_values_have_no_slots() -> None:
    assert compile_plan(staged()).slots["batch"] is None


def test_where_nothing_ever_implies_the_reuse_a_guard_is_added_and_its_cost_told() -> None:
    plan = compile_plan(staged())
    assert plan.slots["staging"] == 1
    assert waits(plan) == ["prepare.device → prepare.host +1"]
    assert any("guarding wait" in n and "'staging'" in n and "nothing" in n for n in plan.notes)


LONG_COPY = {"prepare.device": 4000.0, "prepare.host": 3900.0, "forward.device": 10.0}


def test_a_guard_gets_the_fewest_slots_that_keep_the_period() -> None:
    plan = compile_plan(staged(), costs=LONG_COPY)
    assert plan.slots["staging"] == 2
    assert waits(plan) == ["prepare.device → prepare.host +2"]
    assert plan.period_us == 300 + 3900 + 150  # the driver's own work


def test_a_pinned_number_is_obeyed_whatever_it_costs() -> None:
    plan = compile_plan(staged(), costs=LONG_COPY, slots={"staging": 1})
    assert plan.slots["staging"] == 1
    assert plan.period_us == 3900 + 4000  # fill and copy alternate
    assert any(f"it costs {7900 - 4350} µs a step" in note for note in plan.notes)


def test_the_price_of_a_guard_is_the_period_lost() -> None:
    plan = compile_plan(
        decode_step(2),
        slots={"staging": 1},
        costs={"prepare_inputs.device": 3000.0, "prepare_inputs.host": 6000.0},
    )
    free = compile_plan(
        decode_step(2),
        slots={"staging": 2},
        costs={"prepare_inputs.device": 3000.0, "prepare_inputs.host": 6000.0},
    )
    assert plan.period_us == 9000.0
    lost = plan.period_us - free.period_us
    assert any(f"it costs {lost:.6g} µs a step" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("slots", "code"),
    [({"stagng": 2}, "SW-UNKNOWN-NAME"), ({"batch": 2}, "SW-SLOTS"), ({"staging": 0}, "SW-SLOTS")],
)
def test_pins_that_make_no_sense_are_refused(slots: dict[str, int], code: str) -> None:
    with pytest.raises(GraphError) as caught:
        compile_plan(staged(), slots=slots)
    assert caught.value.code == code


def test_a_value_nobody_writes_needs_one_slot() -> None:
    graph = StepGraph.build(
        [host("a", op("x"))], [replace(value("x", "pinned"), external=True)], order="keep"
    )
    assert compile_plan(graph).slots == {"x": 1}


def test_values_with_the_same_accesses_share_their_number() -> None:
    graph = StepGraph.build(
        [
            host("commit", op("done@-1", cost=1)),
            device("work", op(writes="a b c", cost=1), op("a b c", "done", cost=9)),
            host("later", op("done@-2", cost=1)),
        ],
        [*(value(name, "pinned") for name in "abc"), value("done", "pinned")],
        order="keep",
    )
    plan = compile_plan(graph)
    assert plan.slots["a"] == plan.slots["b"] == plan.slots["c"]


def choices(graph: StepGraph) -> Iterator[tuple[tuple[float, int, int, tuple[int, ...]], Plan]]:
    """Every choice of 1 to 4 slots for the open values, with what it is worth."""
    left = [v for v in graph.values.values() if v.storage == "slots" and v.slots is None]
    for counts in product(range(1, 5), repeat=len(left)):
        pins = {v.name: k for v, k in zip(left, counts, strict=True)}
        try:
            plan = compile_plan(graph, slots=pins)
        except DeadlockError:
            continue
        size = sum(k * (v.nbytes or 1) for v, k in zip(left, counts, strict=True))
        yield (plan.period_us, len(plan.waits), size, counts), plan


def test_the_choice_is_the_best_of_all() -> None:
    compared = 0
    for seed in range(80):
        graph = random_step_graph(seed, most_nodes=4)
        open_values = [
            v.name for v in graph.values.values() if v.storage == "slots" and not v.slots
        ]
        if not 1 <= len(open_values) <= 2:
            continue
        try:
            plan = compile_plan(graph)
        except DeadlockError:
            continue
        best = min(choices(graph), key=lambda each: each[0])[0]
        assert tuple(plan.slots[name] for name in open_values) == best[3], f"seed {seed}"
        compared += 1
    assert compared >= 15
