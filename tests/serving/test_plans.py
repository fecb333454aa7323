"""An LLM whose engine goes from plan to plan: its summary, its trace, and what is written of it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from stepweave import LLM, SamplingParams
from stepweave.cli.results import print_text
from stepweave.cli.trace_summary import summary
from stepweave.executors import threads
from stepweave.executors.course import Course, Goal
from stepweave.serving import steering
from stepweave.serving.plans import USUAL, Load
from stepweave.views.perfetto import write_perfetto
from stepweave.views.traced import Trace

STORY = "Write a short story about a fox."
PLANS = {"apart": {"actors": {"bitmask": "grammar"}}, "deep": {"depth": 3}}


def on_and_on(course: Course, step: int, load: Load) -> Goal:
    """To the next plan after ten steps, and so on; the last is kept."""
    names = [*course.plans]
    place = min(len(course.turned) + 1, len(names) - 1)
    due = step >= 10 * (len(course.turned) + 1)
    return Goal(names[place], reason="measured", said="so") if due else Goal(course.at)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(pipeline="async_grammar", overrides={"plans": PLANS}) as made:
        made.engine.steer = on_and_on
        yield made


def test_a_trace_of_a_run_that_switched_says_which_plan_ran_which_steps(llm: LLM) -> None:
    run = llm.traced([STORY], SamplingParams(max_tokens=48, ignore_eos=True))
    assert [name for name, _ in run.report.parts] == [USUAL, "apart", "deep"]
    found = Trace.of_run(llm.plans, run.report, requests=run.requests, counts=run.steps)
    longest = max(run.report.parts, key=lambda part: len(part[1]))
    assert (found.plan, found.first) == (llm.plans[longest[0]], longest[1].start)
    text = "\n".join(summary(found, "x", 100))
    for name, steps in run.report.parts:
        line = next(line for line in text.splitlines() if line.split()[:1] == [name])
        assert f"{steps.start} to {steps.stop - 1}" in line
        assert llm.plans[name].digest[:16] in line
    stream = io.StringIO()
    write_perfetto(
        stream,
        found.plan,
        found.run,
        planned=found.planned,
        requests=found.requests,
        began_s=found.began_s,
        parts=found.parts,
    )
    events = json.loads(stream.getvalue())["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    plans = [each for each in slices if each["cat"] == "plan"]
    assert [each["name"] for each in plans] == [USUAL, "apart", "deep"]
    assert all(each["ts"] >= 0 for each in slices)
    measured = [each for each in slices if each["pid"] == 1]
    assert len(measured) == len(run.report.events)
    threads = {
        e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1
    }
    apart = dict(run.report.parts)["apart"]
    moved: dict[bool, set[str]] = {True: set(), False: set()}
    for each in measured:
        if each["name"] == "bitmask.host":
            moved[each["args"]["step"] in apart].add(threads[each["tid"]])
    assert moved == {True: {"grammar"}, False: {"driver"}}


def test_the_summary_says_which_plans_there_are_and_how_often_it_went_over(llm: LLM) -> None:
    llm.generate([STORY], SamplingParams(max_tokens=48, ignore_eos=True), progress=False)
    said = llm.summary()["plans"]
    assert said["at"] == "deep"
    assert said["digests"] == {name: plan.digest for name, plan in llm.plans.items()}
    moves = {(each["before"], each["after"], each["reason"]) for each in said["switches"]}
    assert (USUAL, "apart", "measured") in moves
    assert ("apart", "deep", "measured") in moves
    out = io.StringIO()
    about = {"equal_to_synchronous": None, **llm.summary()}
    print_text([], about, out)
    assert "usual → apart (measured)" in " ".join(out.getvalue().split())


def test_drafts_end_under_load_and_begin_again_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "TRIAL", 2)
    params = [SamplingParams(max_tokens=tokens, ignore_eos=True) for tokens in (48, 12)]
    loaded = {"plans.no_drafts.from_rows": 2}
    with LLM(pipeline="drafts_by_load", overrides=loaded) as llm:
        found = llm.generate([STORY, "Hello"], params, progress=False)
        moves = [(each.after, each.reason) for each in llm.engine.turned]
    assert moves == [("no_drafts", "rows"), (USUAL, "rows")]
    with LLM(pipeline="async", overrides={"executor": "serial", "depth": "1"}) as plain:
        expected = plain.generate([STORY, "Hello"], params, progress=False)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert found[1].drafted <= 4 * 3 < found[0].drafted, "while both ran few were drafted"


@pytest.mark.parametrize("executor", ["threads", pytest.param("serial", marks=pytest.mark.nightly)])
def test_steps_of_every_plan_are_replayed_with_the_tokens_of_the_plain_loop(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "USUAL", 1)
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    with LLM(pipeline="async_grammar", overrides={"plans": PLANS, "executor": executor}) as llm:
        llm.engine.steer = on_and_on
        told = []
        for _ in range(2):
            [found] = llm.generate([STORY], params, progress=False)
            assert llm.engine.captures is not None
            counts = llm.engine.captures.counts
            replayed = sum(each.replayed for s, each in counts.items() if "forward.device" in s.ops)
            told.append((replayed, llm.engine.totals.steps, len(llm.engine.turned)))
    replayed, steps, switches = (after - before for before, after in zip(*told, strict=True))
    assert switches == 2
    assert replayed > 0.8 * steps > 35
    plain = {"executor": "serial", "depth": "1", "graphs": "false"}
    with LLM(pipeline="async_grammar", overrides=plain) as alone:
        [expected] = alone.generate([STORY], params, progress=False)
    assert found.token_ids == expected.token_ids


def test_an_engine_with_one_plan_has_no_word_of_others() -> None:
    with LLM(pipeline="async") as alone:
        assert "plans" not in alone.summary()
        assert [*alone.plans] == [USUAL]


@pytest.mark.nightly
def test_checking_mode_goes_over_as_the_engine_does_without_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=44, ignore_eos=True)
    expected = llm.generate([STORY], params, progress=False)
    before = len(llm.engine.turned)
    monkeypatch.setattr(llm.engine, "check", "strict")
    found = llm.generate([STORY], params, progress=False)
    assert [each.after for each in [*llm.engine.turned][before:]] == ["apart", "deep"]
    assert found[0].token_ids == expected[0].token_ids
