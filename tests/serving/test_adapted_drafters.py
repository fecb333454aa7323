"""Rows of several adapters, drafted for by heads of the base model: the merged models' tokens.

Log-probabilities are theirs too, and as many drafts are offered and kept at each depth.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from stepweave.models.adapters import adapt
from stepweave.requests.request import Request, SamplingParams
from stepweave.testing.adapters import save_adapter
from stepweave.testing.engines import (
    VOCAB,
    Method,
    TinyConfig,
    serve,
    tiny_engine,
    tiny_pair,
    tiny_request,
)
from tests.serving.matrix import CONTEXT, DEPTHS, TREES
from tests.serving.reference import Expected, expected
from tests.serving.test_adapters import merged
from tests.serving.test_matrix import check_logprobs

ADAPTERS: Mapping[str, dict[str, Any]] = {
    "one": {"rank": 4, "lora_alpha": 2},
    "two": {"rank": 3, "targets": ("k_proj", "o_proj", "up_proj"), "lora_alpha": 1},
}
NUMBERS = (0, 1, 2)  # of no adapter, and of these
SAMPLING = {
    "greedy": SamplingParams(max_tokens=14, logprobs=2, prompt_logprobs=0),
    "seeded": SamplingParams(max_tokens=14, temperature=0.8, seed=5, logprobs=1),
    "penalties": SamplingParams(max_tokens=14, presence_penalty=0.9, logprobs=0),
}
METHODS = ("eagle", "eagle3", "mtp", "mtp modules", "eagle tree", "eagle3 tree", "mtp grown")
ROOM: Mapping[str, dict[str, Any]] = {
    "plenty": {},
    "small chunks": {"token_budget": 12},
    "few blocks": {"num_blocks": 17},  # rows are preempted
    "prefix cache": {"prefix_cache": True},
}


class Adapted:
    """The tiny target with its adapters in a folder, and what each of its models says."""

    def __init__(self, folder: Path) -> None:
        tiny_pair(torch.float64, context=CONTEXT)[0].save_pretrained(folder / "base")
        base = folder / "base"
        self.folders = {
            name: save_adapter(folder / name, base, seed, **how)
            for seed, (name, how) in enumerate(ADAPTERS.items())
        }
        whole = (merged(base, each) for each in self.folders.values())
        self._models = (tiny_pair(torch.float64, context=CONTEXT)[0], *whole)
        self._said: dict[tuple[str, int], list[Expected]] = {}

    def said(self, sampling: str, number: int) -> list[Expected]:
        """By the model with that adapter, after each prompt."""
        key = sampling, number
        if key not in self._said:
            self._said[key] = [
                expected(self._models[number], prompt, SAMPLING[sampling]) for prompt in prompts()
            ]
        return self._said[key]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"))


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(3, VOCAB) for _ in range(n)] for n in (5, 13)]


def config_of(method: str) -> TinyConfig:
    kind, tree, tokens = TREES.get(method, (method, None, 3))
    config = TinyConfig(draft_tokens=tokens, tree=tree, context=CONTEXT, token_budget=48)
    if method == "mtp modules":
        return replace(config, method="mtp", modules=2)
    return replace(config, method=cast(Method, kind))


def served(config: TinyConfig, adapted: Adapted, sampling: str) -> list[Request]:
    """Each prompt for the base and each adapter."""
    engine = tiny_engine(config)
    adapt(engine.model, adapted.folders)
    requests: list[Request] = []
    for prompt in prompts():
        for number in NUMBERS:
            made = tiny_request(len(requests), prompt, SAMPLING[sampling], context=CONTEXT)
            made.adapter = number
            requests.append(made)
    serve(engine, requests)
    assert [each.error for each in requests] == [None] * len(requests)
    if config.num_blocks < 200:
        assert engine.totals.preemptions > 0
    return requests


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("room", ROOM)
@pytest.mark.parametrize("method", METHODS)
def test_each_row_has_the_tokens_of_its_own_model(
    method: str, room: str, sampling: str, adapted: Adapted
) -> None:
    said = [adapted.said(sampling, number) for number in NUMBERS]
    wanted = [each for of_prompt in zip(*said, strict=True) for each in of_prompt]
    assert len({str(each.tokens) for each in wanted}) == len(wanted), "adapters change the text"
    found = []
    for depth in DEPTHS:
        config = replace(config_of(method), depth=depth, **ROOM[room])
        if depth == 1:
            config = replace(config, check="strict")
        else:
            config = replace(config, executor="threads")
        requests = served(config, adapted, sampling)
        for request, each in zip(requests, wanted, strict=True):
            assert request.output_ids == each.tokens
            params = request.params
            check_logprobs(request.logprobs, params.logprobs, each.tokens, each.log_probs)
            assert each.prompt_log_probs is not None
            check_logprobs(
                request.prompt_logprobs,
                params.prompt_logprobs,
                list(request.prompt_ids[1:]),
                list(each.prompt_log_probs),
            )
        found.append([(each.adapter, each.drafted, each.accepted) for each in requests])
    assert found[0] == found[1] == found[2]
    for number in NUMBERS:
        assert sum(accepted for adapter, _, accepted in found[0] if adapter == number) > 0
