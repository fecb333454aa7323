"""Masks on a stream of their own: uploaded beside the forward pass, for one wait, same tokens."""

from __future__ import annotations

from stepweave import LLM, RequestOutput, verify
from stepweave.cli.planned import planned
from stepweave.requests.request import SamplingParams
from stepweave.structured.grammar import GrammarSpec
from stepweave.timelines.simulated import simulate

WORDS = GrammarSpec.from_request({"regex": "[a-z ]{3,30}"})
PROMPTS = ["Write a story", "One two", "Say a", "A fox"]


def served(pipeline: str, **overrides: str) -> list[tuple[object, ...]]:
    """Tokens, counts and log-probabilities of requests of which two of four have a grammar."""
    params = [
        SamplingParams(max_tokens=10, temperature=0.0, structured_outputs=WORDS),
        SamplingParams(max_tokens=12, temperature=0.8, seed=3, logprobs=2),
        SamplingParams(max_tokens=8, temperature=0.9, seed=5, structured_outputs=WORDS, logprobs=1),
        SamplingParams(max_tokens=6, temperature=0.0),
    ]
    with LLM(pipeline=pipeline, overrides=overrides) as llm:
        return [told(each) for each in llm.generate(PROMPTS, params)]


def told(output: RequestOutput) -> tuple[object, ...]:
    assert output.error is None
    return output.token_ids, output.drafted, output.accepted, output.finish_reason


def test_tokens_and_counts_are_those_of_the_serial_loop_with_masks_on_the_stream_of_the_model() -> (
    None
):
    plain = served("async_eagle3_grammar", executor="serial", depth="1", graphs="false")
    assert served("mask_stream") == plain
    assert served("mask_stream", depth="3") == plain


def test_it_takes_one_wait_and_the_upload_is_off_the_critical_cycle() -> None:
    before, after = (
        planned(name, None, costs="llama_8b", rows=8)
        for name in ("async_eagle3_grammar", "mask_stream")
    )
    verify(after)
    waits = [{(wait.source, wait.target) for wait in plan.waits} for plan in (before, after)]
    assert waits[1] - waits[0] == {("bitmask.device", "sample.device")}
    assert waits[0] < waits[1]
    cycles = [[op for op, _ in plan.critical_cycle] for plan in (before, after)]
    assert cycles[1] == [op for op in cycles[0] if op != "bitmask.device"]
    assert before.period_us - after.period_us == before.costs["bitmask.device"] > 0


def test_masks_are_uploaded_while_the_model_runs() -> None:
    """In steady state, and before the step's own forward pass has ended."""
    timeline = simulate(planned("mask_stream", None, costs="llama_8b", rows=8), steps=12)
    for step in range(6, 11):
        upload, forward = (timeline.span(f"{node}.device", step) for node in ("bitmask", "forward"))
        assert forward.start_us < upload.start_us
        assert upload.end_us < forward.end_us
