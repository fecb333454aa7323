"""A request goes on from tokens that another engine has settled, as if it had never moved."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from allpairspy import AllPairs

from stepweave import LLM, AsyncLLM, SamplingParams
from stepweave.requests.increment import Increment
from stepweave.requests.request import RequestError, RequestOutput
from tests.serving.matrix import (
    DEPTHS,
    GRAMMARS,
    METHODS,
    SAMPLING,
    SITUATIONS,
    Cell,
    asked,
    plainly,
    run,
)
from tests.serving.test_matrix import check_logprobs

STORY = "Write a short story about a fox named Ida."
PERSON = {
    "prompt": "Extract name and age as JSON: Max Tanaka is 61 years old.",
    "structured_outputs": {"json_object": True},
}
CUTS = (1, 3, 7)
"""After how many of its tokens a request of the matrix moves, by its place in turn."""

CELLS = [
    Cell(*cell)
    for cell in AllPairs(
        [list(axis) for axis in (DEPTHS, METHODS, GRAMMARS, SAMPLING, SITUATIONS)],
    )
]


def check(cell: Cell) -> None:
    """Cut each request of the cell, and compare what it comes to elsewhere with the reference."""
    requests = asked(cell)
    expected = [plainly(each) for each in requests]
    cuts = itertools.cycle(CUTS)
    brought = [
        each.tokens[: min(next(cuts), len(each.tokens) - 1)] if index else []
        for index, each in enumerate(expected)
    ]
    moved = run(cell, requests, depth=cell.depth, executor="threads", brought=brought)
    for request, each, want, came in zip(moved.requests, requests, expected, brought, strict=True):
        assert request.error is None
        assert request.output_ids == want.tokens
        rest = len(came)
        check_logprobs(
            request.logprobs, each.params.logprobs, want.tokens[rest:], want.log_probs[rest:]
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cell", {each.method: each for each in CELLS}.values(), ids=str)
def test_what_moves_gets_the_tokens_that_it_would_have_had(cell: Cell) -> None:
    check(cell)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_what_moves_gets_them_in_every_pair_of_features(cell: Cell) -> None:
    check(cell)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(overrides={"depth": 2, "graphs": False}) as made:  # drafts and grammars
        yield made


def resumed(
    llm: LLM, prompt: Any, params: SamplingParams, whole: RequestOutput, *cuts: int
) -> list[RequestOutput]:
    """The outputs of requests that move after so many tokens of `whole`."""
    moved = [replace(params, settled_token_ids=whole.token_ids[:cut]) for cut in cuts]
    return llm.generate([prompt] * len(cuts), moved)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=24),
        SamplingParams(max_tokens=24, temperature=0.9, seed=3, repetition_penalty=1.3),
        SamplingParams(max_tokens=24, temperature=1.0, seed=4, min_tokens=20, top_p=0.9),
    ],
    ids=["greedy", "penalties", "min tokens"],
)
@pytest.mark.parametrize("prompt", [STORY, PERSON], ids=["text", "grammar"])
def test_tokens_text_and_end_are_those_of_an_output_that_was_not_cut(
    llm: LLM, prompt: Any, params: SamplingParams
) -> None:
    [whole] = llm.generate(prompt, params)
    most = len(whole.token_ids)
    for found in resumed(llm, prompt, params, whole, 1, most // 2, most - 1):
        assert (found.token_ids, found.text) == (whole.token_ids, whole.text)
        assert found.finish_reason == whole.finish_reason


def test_a_stop_string_is_found_across_the_cut(llm: LLM) -> None:
    [plain] = llm.generate(STORY, {"max_tokens": 20})
    stop = plain.text[20:26]
    params = SamplingParams(max_tokens=20, stop=stop)
    [whole] = llm.generate(STORY, params)
    assert whole.finish_reason == "stop"
    for found in resumed(llm, STORY, params, whole, *range(1, len(whole.token_ids))):
        assert (found.text, found.token_ids) == (whole.text, whole.token_ids)


def test_log_probabilities_are_told_of_the_tokens_after_the_cut(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, logprobs=2, prompt_logprobs=0)
    [whole] = llm.generate(STORY, params)
    [found] = resumed(llm, STORY, params, whole, 5)
    assert whole.logprobs is not None
    assert found.logprobs is not None
    assert [each.token for each in found.logprobs] == [each.token for each in whole.logprobs[5:]]
    assert [each.logprob for each in found.logprobs] == pytest.approx(
        [each.logprob for each in whole.logprobs[5:]], abs=1e-4
    )
    assert found.prompt_logprobs is not None
    assert len(found.prompt_logprobs) == len(whole.prompt_logprobs or ())


@pytest.mark.parametrize("stop", [None, "Ida"])
def test_an_output_that_is_whole_already_ends_at_once(llm: LLM, stop: str | None) -> None:
    params = SamplingParams(max_tokens=16, stop=stop or ())
    [whole] = llm.generate(STORY, params)
    steps = llm.engine.totals.steps
    [found] = llm.generate(STORY, replace(params, settled_token_ids=whole.token_ids))
    assert llm.engine.totals.steps == steps
    assert (found.text, found.finish_reason) == (whole.text, whole.finish_reason)
    assert found.token_ids == whole.token_ids
    [found] = llm.generate({**PERSON, "max_tokens": 1, "settled_token_ids": [5]})
    assert found.finish_reason == "length"


def test_increments_have_what_comes_after_the_cut(llm: LLM) -> None:
    [whole] = llm.generate(STORY, {"max_tokens": 16})

    async def increments() -> list[Increment]:
        async with AsyncLLM(pipeline="async_grammar") as served:
            params = {"max_tokens": 16, "settled_token_ids": whole.token_ids[:6]}
            return [each async for each in served.generate(STORY, params)]

    found = asyncio.run(increments())
    assert sum((each.token_ids for each in found), ()) == whole.token_ids[6:]
    text = "".join(each.text for each in found)
    assert whole.text.endswith(text)
    assert 0 < len(text) < len(whole.text)
    assert found[-1].output is not None
    assert found[-1].output.text == whole.text


def test_only_what_is_new_is_counted_and_timed(llm: LLM) -> None:
    [whole] = llm.generate(STORY, {"max_tokens": 16, "ignore_eos": True})
    before = llm.engine.totals.tokens
    params = {"max_tokens": 16, "ignore_eos": True, "settled_token_ids": whole.token_ids[:10]}
    [found] = llm.generate(STORY, params)
    assert llm.engine.totals.tokens - before == 6
    assert found.timings is not None
    assert found.timings.first_token_s is not None
    assert found.timings.per_token_s is not None


def test_what_cannot_be_gone_on_from_is_refused(llm: LLM) -> None:
    def error(**params: Any) -> str:
        [found] = llm.generate(STORY, params)
        return found.error or ""

    vocab = llm.engine.model.vocab_size
    assert f"token id {vocab} is outside" in error(settled_token_ids=[5, vocab])
    end = min(llm.engine.model.eos_token_ids)
    assert "ends with the first 2 of 3 tokens" in error(settled_token_ids=[5, end, 6])
    assert "ends with the first 4 of 5" in error(settled_token_ids=[5] * 5, max_tokens=4)
    with pytest.raises(RequestError, match="n is 2"):
        SamplingParams(n=2, settled_token_ids=[5])
    with pytest.raises(RequestError, match="settled_token_ids"):
        SamplingParams(settled_token_ids=[-1])


@pytest.mark.parametrize("name", ["async_jump_forward", "async_allowed_drafts", "quickstart"])
def test_tokens_that_a_grammar_refuses_end_their_own_request_alone(name: str) -> None:
    """Whichever node looks at them first."""
    grammar = {"structured_outputs": {"regex": "[0-9]{6}"}, "settled_token_ids": [300, 301]}
    asked: list[Any] = ["One story", {"prompt": "A number", **grammar}, "Two"]
    with LLM(pipeline=name) as llm:
        first, wrong, last = llm.generate(asked, SamplingParams(max_tokens=12))
    assert wrong.error is not None
    assert "token 300" in wrong.error
    assert (first.error, last.error) == (None, None)
    assert first.token_ids
    assert last.token_ids
