"""Draft trees: the tokens of the plain loop, at every depth, and more of them in a step."""

from dataclasses import replace

import pytest

from stepweave.requests.params import SamplingParams
from stepweave.testing.engines import Method, TinyConfig, serve, tiny_engine, tiny_requests

TREE = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
CONFIG = TinyConfig(draft_tokens=len(TREE), tree=TREE, token_budget=96)
PARAMS = [
    SamplingParams(max_tokens=20),
    SamplingParams(max_tokens=17, temperature=0.9, seed=3),
    SamplingParams(max_tokens=12, temperature=0.8, seed=4, top_k=20, repetition_penalty=1.3),
]


def run(config: TinyConfig) -> tuple[list[list[int]], list[tuple[int, int]]]:
    requests = tiny_requests(PARAMS)
    tokens = serve(tiny_engine(config), requests)
    assert [request.error for request in requests] == [None] * len(requests)
    return tokens, [(request.drafted, request.accepted) for request in requests]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "medusa"])
def test_tokens_are_those_without_drafts_and_counts_are_equal_at_every_depth(
    method: Method,
) -> None:
    plain, _ = run(TinyConfig())
    config = replace(CONFIG, method=method)
    found = [run(replace(config, depth=depth)) for depth in (1, 3)]
    found.append(run(replace(config, depth=2, check="strict")))
    assert [tokens for tokens, _ in found] == [plain] * 3
    assert found[0][1] == found[1][1] == found[2][1]
    accepted = sum(accepted for _, accepted in found[0][1])
    assert accepted > 0
