"""When each request was asked for, scheduled, given its first token and ended."""

from __future__ import annotations

import pytest

from stepweave import LLM, SamplingParams
from stepweave.requests.spans import RequestLog

PROMPTS = ["Write a short story about a fox.", "Hello", "Is this good?"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(pipeline="async_grammar", overrides={"scheduler.max_rows": "2"})


def test_every_request_has_its_moments_in_order(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12)
    plain = llm.generate(PROMPTS, params)
    traced = llm.traced(PROMPTS, params)
    assert [o.token_ids for o in traced.outputs] == [o.token_ids for o in plain]
    report = traced.report
    assert [span.id for span in traced.requests] == [output.id for output in traced.outputs]
    for span, output in zip(traced.requests, traced.outputs, strict=True):
        assert span.submitted_s is not None
        assert span.scheduled_s is not None
        assert span.first_token_s is not None
        assert span.ended_s is not None
        moments = [
            span.asked_s,
            span.submitted_s,
            span.scheduled_s,
            span.first_token_s,
            span.ended_s,
            report.ended_s,
        ]
        assert moments == sorted(moments)
        assert span.scheduled_s >= report.began_s
        assert (span.tokens, span.finish_reason) == (len(output.token_ids), output.finish_reason)
        assert span.prompt_tokens > 0
        assert list(span.steps) == sorted(set(span.steps))
        assert len(span.steps) >= span.tokens  # a step gives one token, here
        schedules = {e.step: e for e in report.events if e.op == "schedule.host"}
        commits = {e.step: e for e in report.events if e.op == "commit.host.advance"}
        first = schedules[span.steps[0]]
        assert first.start_s <= span.scheduled_s - report.began_s + 1e-4
        assert span.scheduled_s - report.began_s <= first.end_s + 1e-4
        taken = commits[span.steps[0]]
        assert taken.start_s - 1e-4 <= span.first_token_s - report.began_s <= taken.end_s + 1e-4


def test_with_two_rows_the_third_request_waits(llm: LLM) -> None:
    spans = llm.traced(PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True)).requests
    first, second, third = spans
    assert third.scheduled_s is not None
    assert first.ended_s is not None
    assert second.ended_s is not None
    assert third.scheduled_s > min(first.ended_s, second.ended_s)


def test_the_time_in_which_a_grammar_is_compiled_is_told_apart(llm: LLM) -> None:
    from stepweave.structured.grammar import GrammarSpec

    grammar = GrammarSpec.from_request({"regex": "[a-z]{3}-[0-9]{5}"})
    params = [
        SamplingParams(max_tokens=8),
        SamplingParams(max_tokens=8, structured_outputs=grammar),
    ]
    plain, bound = llm.traced(PROMPTS[:2], params).requests
    assert plain.submitted_s is not None
    assert bound.submitted_s is not None
    assert bound.submitted_s - bound.asked_s > plain.submitted_s - plain.asked_s


def test_a_run_that_is_not_traced_notes_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("noted")

    for name in ("__init__", "scheduled", "spans"):
        monkeypatch.setattr(RequestLog, name, never)
    assert llm.generate("Hello", SamplingParams(max_tokens=3))[0].error is None
    assert llm.service.table.log is None


def test_the_counts_of_the_steps_add_up_to_those_of_the_outputs() -> None:
    llm = LLM(pipeline="async_ngram", overrides={"scheduler.max_rows": "2"})
    prompts = [*PROMPTS, "one two three one two three one two"]
    traced = llm.traced(prompts, SamplingParams(max_tokens=12, ignore_eos=True))
    counts, outputs = traced.steps, traced.outputs
    assert sum(count.tokens for count in counts) == sum(len(o.token_ids) for o in outputs) == 48
    assert sum(count.drafted for count in counts) == sum(o.drafted for o in outputs) > 0
    assert sum(count.accepted for count in counts) == sum(o.accepted for o in outputs)
    by_step = {count.step: count for count in counts}
    assert list(by_step) == sorted(by_step)
    for step, count in by_step.items():
        assert count.rows == sum(step in span.steps for span in traced.requests)
        assert count.rows <= 2
        assert count.rows <= count.blocks <= count.blocks_in_all
        assert count.accepted <= count.drafted
    assert max(count.waiting for count in counts) == 2
    llm.close()
