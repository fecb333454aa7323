"""Exploring plans with waits that only some modes need: each word of modes, with its own waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepweave.executors.run import run
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.plan import Plan, Wait
from stepweave.testing.exploring.campaign import campaign
from stepweave.testing.exploring.explorer import explore, explore_exhaustively, replay
from stepweave.testing.exploring.mutants import mutants, what_runs
from stepweave.testing.exploring.nodes import Interleaved, explore_nodes
from stepweave.testing.unverified import run_unverified
from tests.graph.conditions_oracle import races
from tests.graph.planner.test_conditional import changed, planned, words
from tests.graph.shipped_plans import shipped_plan
from tests.testing.exploring.masked import masked, unmasked

FILL = ("fill_mask.host", "sample.host")


def grammar(**change: object) -> Plan:
    """The shipped graph, with the wait of a structured step for its mask changed."""
    plan = shipped_plan("grammar_in_turns")
    for index, wait in enumerate(plan.waits):
        if (wait.source, wait.target) == FILL:
            return changed(plan, index, replace(wait, **change))  # type: ignore[arg-type]
    raise AssertionError("there is no such wait")


def test_a_plan_is_explored_without_the_waits_that_a_mode_leaves_out() -> None:
    explore(grammar(), seeds=range(5)).check()


def test_a_wait_in_the_wrong_mode_is_found_with_the_modes_of_the_steps() -> None:
    found = explore(grammar(modes=("plain",)), seeds=()).failure
    assert found is not None
    assert "structured" in found.word
    assert {FILL[0]} <= {touch.op for touch in (found.first, found.second) if touch is not None}
    assert f"modes    {' '.join(found.word)}" in str(found)


def test_a_drawn_word_is_drawn_again_from_its_seed() -> None:
    mutant = grammar(modes=("plain",))
    found = explore(mutant, seeds=range(40), directed=False, shrink=False).failure
    assert found is not None
    assert found.seed is not None
    again = replay(mutant, found.seed)
    assert again is not None
    assert (again.word, again.actors) == (found.word, found.actors)


def one_mode_less(plan: Plan) -> list[tuple[int, Wait]]:
    names = [mode.name for mode in plan.graph.modes]
    return [
        (index, replace(wait, modes=tuple(other for other in modes if other != name)))
        for index, wait in enumerate(plan.waits)
        for modes in ((wait.modes or tuple(names)),)
        for name in modes
        if len(modes) > 1
    ]


@pytest.mark.parametrize("seed", [1, 9])
def test_the_explorer_finds_a_mode_too_few_where_words_go_wrong(seed: int) -> None:
    plan = planned(seed)
    assert plan is not None
    explore(plan, seeds=range(5)).check()
    missed = 0
    for index, fewer in one_mode_less(plan):
        mutant = changed(plan, index, fewer)
        wrong = any(races(mutant, word) for word in words(plan, seed, 6))
        found = explore(mutant, seeds=range(20), shrink=False).failure
        missed += wrong and found is None
        assert found is None or wrong or found.hazard in ("BOUND", "LOST", "LAUNCH"), str(found)
    assert missed == 0


def test_every_interleaving_of_every_word_is_visited() -> None:
    plan = planned(1)
    assert plan is not None
    found = explore_exhaustively(plan, steps=1, limit=50_000)
    assert found.failure is None
    alone = explore_exhaustively(replace(plan, graph=replace(plan.graph, told_by=None)), steps=1)
    assert found.schedules >= len(plan.graph.modes) * min(1, alone.schedules)


def test_every_mutant_of_a_plan_in_modes_is_judged() -> None:
    plan = masked()
    said = [mutant.what for mutant in mutants(plan)]
    assert not any("writes kind, undeclared" in each for each in said), "nobody would tell modes"
    assert any("reads kind, undeclared" in each for each in said)
    found = campaign(plan)
    assert found.ok, found.disagreements
    assert found.tallies["wait"].killed == found.tallies["wait"].total > 0


def test_plans_whose_waits_take_place_in_other_modes_run_in_another_way() -> None:
    assert what_runs(masked()) == what_runs(masked())
    assert what_runs(unmasked()) != what_runs(masked())
    always = tuple(replace(wait, modes=None) for wait in masked().waits)
    assert what_runs(replace(masked(), waits=always)) != what_runs(masked())


def test_real_ops_whose_wait_is_in_the_wrong_mode_fail_by_what_their_mode_reads() -> None:
    """What is read too early is handed on: the result itself cannot be compared."""
    plan = unmasked()

    def served(executor: Interleaved) -> Sequence[int]:
        return run_unverified(plan, executor, RunArguments(8, keep=["out"])).kept["out"]

    expected = run(masked(), executor="serial", steps=8, keep=["out"]).kept["out"]
    failure = explore_nodes(plan, served, expected=expected, seeds=range(30)).failure
    assert failure is not None
    assert failure.hazard == "RAW"
    assert failure.second is not None
    assert failure.second.value == "mask"
    assert failure.word[failure.second.step] == "masked"
    assert failure.word == ("plain", "masked", "masked") * 2 + ("plain", "masked")
