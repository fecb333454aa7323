"""The tokens of transformers' own `generate`, with its own options for what it has options for."""

from typing import Any

import pytest
import torch

from stepweave.requests.request import SamplingParams
from stepweave.testing.engines import (
    EOS,
    Method,
    TinyConfig,
    serve,
    tiny_engine,
    tiny_pair,
    tiny_request,
)

PROMPTS = [[39, 74, 319], [155, 14, 187, 215, 87, 77, 138], [7] * 9]
WORDS = ((186,), (131, 132), (7, 7))
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}),
    "repetition penalty": ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    "bad words": ({}, {"bad_words_ids": [list(word) for word in WORDS]}),
    "least length": ({"min_tokens": 14}, {"min_new_tokens": 14}),
    "bias": (
        {"logit_bias": ((200, 4.0), (61, -3.0))},
        {"sequence_bias": {(200,): 4.0, (61,): -3.0}},
    ),
    "all of them": (
        {"repetition_penalty": 1.5, "min_tokens": 9, "logit_bias": ((200, 4.0),)},
        {
            "repetition_penalty": 1.5,
            "min_new_tokens": 9,
            "sequence_bias": {(200,): 4.0},
            "bad_words_ids": [list(word) for word in WORDS],
        },
    ),
}


def by_generate(prompt: list[int], options: dict[str, Any]) -> list[int]:
    model: Any = tiny_pair(torch.float64)[0]
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=[EOS, 200, 243],  # the last two come early, so that length matters
            pad_token_id=EOS,
            **options,
        )
    return [int(token) for token in out[0, len(prompt) :]]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("method", [None, "draft_model", "eagle3", "ngram"])
def test_options_mean_what_they_mean_in_generate(option: str, method: Method | None) -> None:
    ours, theirs = OPTIONS[option]
    config = TinyConfig(
        depth=2,
        executor="threads",
        draft_tokens=0 if method is None else 3,
        method=method or "draft_model",
    )
    params = SamplingParams(max_tokens=20, stop_token_ids=(200, 243), **ours)
    words = WORDS if "bad_words_ids" in theirs else ()
    requests = [
        tiny_request(uid, prompt, params, bad_words=words) for uid, prompt in enumerate(PROMPTS)
    ]
    expected = [by_generate(prompt, theirs) for prompt in PROMPTS]
    assert serve(tiny_engine(config), requests) == expected
    if option != "greedy":
        assert expected != [by_generate(prompt, {}) for prompt in PROMPTS]
