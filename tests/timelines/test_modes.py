"""Real runs by mode: what steps of a mode took, and what the plan says they should."""

from __future__ import annotations

import pytest

from stepweave.executors.report import OpEvent, RunReport
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.timelines.measured import measured, planned_beside, replayed_us
from stepweave.timelines.modes import by_mode, simulate_word, simulated_words
from stepweave.timelines.simulated import Turn, simulate
from tests.graph.build import device, host, op, value
from tests.graph.shipped_plans import shipped_plan

STEPS = 40
COSTS = {
    "decode": {"prepare.host": 30.0, "forward.host": 5.0, "forward.device": 100.0},
    "prefill": {"prepare.host": 400.0, "forward.host": 5.0, "forward.device": 900.0},
}


def graph() -> StepGraph:
    return StepGraph.build(
        [
            host("prepare", op("token@-1", "inputs", 30)),
            device("forward", op(cost=5), op("inputs", "token", 100)),
        ],
        [value("inputs", "pinned"), value("token", "pinned")],
        order="keep",
    )


def mode_of(step: int) -> str:
    return "prefill" if step % 4 == 0 else "decode"


def ran() -> RunReport:
    """A run whose ops take exactly their costs of each step's mode."""

    def takes(turn: Turn) -> float:
        return COSTS[mode_of(turn.step)][turn.op]

    found = simulate(compile_plan(graph()), steps=STEPS, takes=takes)
    events = [
        OpEvent(each.op, each.step, each.actor, each.start_us / 1e6, each.end_us / 1e6)
        for each in found.events
    ]
    return RunReport(STEPS, events=tuple(events))


def test_steps_take_what_is_predicted_for_their_mode_and_one_cost_for_all_is_wrong() -> None:
    plan = compile_plan(graph())
    run = measured(plan, ran())
    found = by_mode(plan, run, {step: mode_of(step) for step in range(STEPS)})
    assert found is not None
    assert [each.mode for each in found.modes] == ["decode", "prefill"]
    for each in found.modes:
        costs = COSTS[each.mode]
        assert each.predicted_us == pytest.approx(each.measured_us)
        assert each.alone_us == pytest.approx(sum(costs.values()))  # nothing overlaps here
    assert found.predicted_us == pytest.approx(found.measured_us)
    assert found.one_cost_us == pytest.approx(135)
    assert found.measured_us > 3 * found.one_cost_us


@pytest.mark.parametrize("word", [("plain",), ("structured", "plain")])
def test_waits_of_some_modes_take_place_in_these(word: tuple[str, ...]) -> None:
    plan = shipped_plan("grammar_in_turns")
    simulated = simulate_word(plan, word, steps=60)
    modes = {step: word[step % len(word)] for step in range(60)}
    events = tuple(
        OpEvent(each.op, each.step, each.actor, each.start_us / 1e6, each.end_us / 1e6)
        for each in simulated.events
    )
    run = measured(plan, RunReport(60, events=events), modes=modes)
    found = by_mode(plan, run, modes)
    assert found is not None
    assert found.predicted_us == pytest.approx(found.measured_us)
    assert planned_beside(plan, run, modes=modes).period_us == pytest.approx(simulated.period_us)
    assert replayed_us(plan, run, modes=modes) == pytest.approx(simulated.period_us)
    if len(word) > 1:
        assert replayed_us(plan, run) > 1.2 * simulated.period_us, "as if all waits took place"
    alone = {each.mode: each.alone_us for each in found.modes}
    assert alone["plain"] == pytest.approx(simulate_word(plan, ("plain",), steps=60).period_us)


def test_steps_without_a_mode_count_nowhere() -> None:
    plan = compile_plan(graph())
    run = measured(plan, ran())
    assert by_mode(plan, run, {}) is None
    some = by_mode(plan, run, {step: "decode" for step in range(STEPS) if step % 4})
    assert some is not None
    (only,) = some.modes
    assert only.steps == sum(step % 4 > 0 for step in run.steady)


@pytest.mark.parametrize("steps", [38, 41, 60])  # whole words of the sequence, or not
def test_each_mode_of_a_plan_takes_what_is_predicted_and_so_does_the_longest_sequence(
    steps: int,
) -> None:
    words = simulated_words(shipped_plan("prefill_decode"), steps=steps)
    assert {("decode",), ("prefill",)} <= {each.word for each in words}
    for each in words:
        assert each.simulated_us == pytest.approx(each.predicted_us)
    assert simulated_words(compile_plan(graph()), steps=60) == []
