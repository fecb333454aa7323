"""Recorded steps under the whole engine, on threads of a CPU: the tokens of the serial loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave import LLM
from stepweave.executors import threads
from stepweave.executors.captured_segment import IDLE
from tests.serving.test_graphs import GREEDY, PROMPTS, RUNNABLE, params_for, told

SAMPLE = ("quickstart", "async_eagle3_grammar", "synchronous")


def pipelines() -> list[object]:
    return [
        pytest.param(name, marks=() if name in SAMPLE else pytest.mark.nightly) for name in RUNNABLE
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", pipelines())
def test_recorded_steps_give_the_tokens_and_counts_of_the_serial_loop(name: str) -> None:
    plain = LLM(pipeline=name, overrides={"executor": "serial", "depth": "1", "graphs": "false"})
    assert plain.engine.captures is None
    recorded = LLM(pipeline=name)
    short = replace(GREEDY, max_tokens=24)
    mixed = [replace(each, max_tokens=min(each.max_tokens, 24)) for each in params_for(name)]
    for params in ([short] * 5, mixed):
        for _ in range(2):  # what is drafted from earlier answers is another each time
            assert told(recorded.generate(PROMPTS, params)) == told(plain.generate(PROMPTS, params))
    captures = recorded.engine.captures
    assert captures is not None
    assert captures.learning > 0
    for segment, counts in captures.counts.items():
        if not counts.eager:
            continue  # of a plan that has not run: the first step of each shape runs as usual
        fresh = any(reason.endswith("is fresh in each step") for reason in counts.eager)
        little = segment.stream == "copy" or IDLE in counts.eager or fresh
        assert counts.replayed > 0 or little, (segment, counts)
    assert not [note for note in recorded.engine.notes() if "not replayed" in note], (
        "on a CPU that is no reason for anybody to do anything"
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["threads", "serial"])
@pytest.mark.parametrize("name", pipelines())
def test_recordings_of_one_slot_serve_the_others(
    name: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every shape is recorded at once, and so whatever comes up a second time is replayed."""
    monkeypatch.setattr(threads, "USUAL", 1)
    plain = LLM(pipeline=name, overrides={"executor": "serial", "depth": "1", "graphs": "false"})
    recorded = LLM(pipeline=name, overrides={"executor": executor})
    params = params_for(name)
    for _ in range(2):  # what is drafted from earlier answers is another each time
        assert told(recorded.generate(PROMPTS, params)) == told(plain.generate(PROMPTS, params))
    captures = recorded.engine.captures
    assert captures is not None
    every = captures.counts.values()
    assert sum(counts.captured for counts in every) > 0
    if recorded.config.depth > 1:
        assert sum(counts.moved for counts in every) > 0


def test_a_request_alone_and_in_company_gets_the_same_bits() -> None:
    """Rows are not padded on a CPU, so that each number of rows has recordings of its own."""
    llm = LLM(pipeline="async")
    params = [replace(GREEDY, logprobs=3, max_tokens=24)] * 3
    together = llm.generate(PROMPTS[:3], params)
    alone = [llm.generate([prompt], params[:1])[0] for prompt in PROMPTS[:3]]
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
