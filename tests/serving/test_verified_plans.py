"""Nothing runs that the verifier has not passed, whoever made or changed the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stepweave.graph.planner.compile as planner
import stepweave.graph.verifier.verify as verifier
from stepweave import LLM, SamplingParams, UnsoundPlan, compile_plan, node, run, step_graph
from stepweave.cli.main import app
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.node import OpContext
from stepweave.graph.plan import Plan
from stepweave.graph.verifier.verified import verified_switch
from stepweave.graph.verifier.verify import violations
from stepweave.graph.violation import Violation
from stepweave.serving.plans import Plans
from stepweave.testing import Deferred, Strict, TinyConfig, run_unverified, tiny_engine, with_faults
from stepweave.testing.engines import serve, tiny_requests


def without_a_wait(plan: Plan) -> Plan:
    return replace(plan, waits=plan.waits[1:])


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that forgets the first wait of each plan."""
    planned = planner.plan_for
    monkeypatch.setattr(planner, "plan_for", lambda *args: without_a_wait(planned(*args)))


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that were verified, each as often as it was."""
    found: list[Plan] = []

    def noting(plan: Plan) -> list[Violation]:
        found.append(plan)
        return violations(plan)

    monkeypatch.setattr(verifier, "violations", noting)
    return found


def handed_over(ran: list[int] | None = None) -> Plan:
    """`use`, on a thread of its own, reads what `make` writes: it waits, or there is a race."""

    @node(writes="x")
    def make(ctx: OpContext) -> int:
        if ran is not None:
            ran.append(ctx.step)
        return ctx.step

    @node(actor="other", writes="y")
    def use(x: int) -> int:
        return x

    plan = compile_plan(step_graph(make, use))
    assert (plan.waits[0].source, plan.waits[0].target) == ("make.host", "use.host")
    return plan


# --- the doors ---


@pytest.mark.parametrize("executor", ["serial", "threads", "cuda", Deferred(), Strict()])
def test_a_run_of_a_plan_without_a_wait_is_refused_before_any_op_runs(executor: object) -> None:
    ran: list[int] = []
    with pytest.raises(UnsoundPlan, match=r"RAW race on 'x': use\.host of step i may read it"):
        run(without_a_wait(handed_over(ran)), executor=executor, steps=3)  # type: ignore[arg-type]
    assert ran == []


def test_an_engine_refuses_it_when_it_is_made_and_when_its_plan_is_changed() -> None:
    engine = tiny_engine(TinyConfig())
    sound = engine.plan
    with pytest.raises(UnsoundPlan, match=r"RAW race on '\w+'"):
        replace(engine, compile=lambda machine: without_a_wait(sound))
    engine.plan = without_a_wait(sound)
    with pytest.raises(UnsoundPlan, match=r"RAW race on '\w+'"):
        serve(engine, tiny_requests([SamplingParams(max_tokens=2)]))


@pytest.mark.usefixtures("forgetful")
def test_the_front_door_refuses_it() -> None:
    with pytest.raises(UnsoundPlan, match=r"RAW race on '\w+'"):
        LLM(pipeline="async")


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    "verb",
    [
        ["run", "async", "--prompt", "x"],
        ["trace", "async", "--prompt", "x"],
        ["profile", "async", "--prompt", "x"],
        ["simulate", "async"],
        ["check", "async"],
        ["graph", "show", "async"],
    ],
    ids=" ".join,
)
def test_each_verb_refuses_it(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, verb)
    assert result.exit_code == 1, result.output
    assert "RAW race on" in result.output
    assert "Traceback" not in result.output


# --- once for each plan ---


def test_a_plan_is_verified_before_its_first_run_and_never_again(times: list[Plan]) -> None:
    plan = handed_over()
    for _ in range(3):
        run(plan, steps=2)
        run(plan, executor=Strict("threads"), steps=2)
    assert [each is plan for each in times] == [True]


@pytest.mark.parametrize("change", [replace, lambda plan: with_faults(plan, lambda *given: None)])
def test_whatever_was_made_of_a_plan_is_verified_anew(
    times: list[Plan], change: Callable[[Plan], Plan]
) -> None:
    plan = handed_over()
    run(plan, steps=1)
    changed = change(plan)
    run(changed, steps=1)
    assert [each is plan for each in times] == [True, False]
    assert times[1] is changed


def test_a_plan_that_was_refused_is_refused_again(times: list[Plan]) -> None:
    plan = without_a_wait(handed_over())
    for _ in range(2):
        with pytest.raises(UnsoundPlan):
            run(plan, steps=1)
    assert len(times) == 2


def test_an_engine_verifies_its_plan_once_for_all_calls(times: list[Plan]) -> None:
    with LLM(pipeline="async") as llm:
        for _ in range(2):
            llm.generate("A fox", SamplingParams(max_tokens=2))
        assert [each is llm.plan for each in times] == [True]


def test_plans_that_follow_each_other_are_verified_once_and_not_in_each_switch(
    times: list[Plan],
) -> None:
    plans = Plans.of({name: handed_over() for name in "abc"})
    assert len(plans.switches) == 6
    assert [*map(id, times)] == [*map(id, plans.by_name.values())]
    unsound = without_a_wait(handed_over())
    with pytest.raises(UnsoundPlan, match="RAW race on 'x'"):
        verified_switch(replace(plans.switches["a", "b"], before=unsound))
    with pytest.raises(UnsoundPlan, match="RAW race on 'x'"):
        verified_switch(replace(plans.switches["a", "b"], after=unsound))


# --- the one door for the others ---


def test_what_is_refused_can_be_run_by_name() -> None:
    ran: list[int] = []
    plan = without_a_wait(handed_over(ran))
    assert run_unverified(plan, "serial", RunArguments(steps=3, keep=["y"])).kept["y"] == [0, 1, 2]
    assert ran == [0, 1, 2]
