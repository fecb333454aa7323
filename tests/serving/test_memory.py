"""Blocks that are shared or given back early hold the right keys: tokens do not change."""

import pytest
import torch

from stepweave import LLM
from stepweave.models.causal_lm import CausalLM
from stepweave.nodes.draft_model import DRAFT_MODEL
from stepweave.requests.request import SamplingParams
from stepweave.requests.table import Limits
from stepweave.serving.engine import Engine
from stepweave.serving.pipeline import compiled
from stepweave.testing.engines import VOCAB, Method, TinyConfig, fitted, tiny_pipeline, tiny_request
from stepweave.testing.models import tiny_model
from tests.models.paged_rows import own_greedy

WINDOW = 7


def windowed_engine(depth: int, method: Method | None, num_blocks: int) -> Engine:
    """A model all of whose layers look back seven tokens."""

    def model(seed: int, layers: int) -> CausalLM:
        return CausalLM.wrap(
            tiny_model(
                "mistral",
                seed,
                torch.float64,
                vocab_size=VOCAB,
                num_hidden_layers=layers,
                sliding_window=WINDOW,
            ),
            invariant=False,
        )

    k = 0 if method is None else 3
    config = TinyConfig(
        depth=depth, max_rows=3, token_budget=24, draft_tokens=k, method=method or "draft_model"
    )
    return Engine(
        lambda resources: compiled(tiny_pipeline(config), resources),
        model(0, 3),
        Limits(3, 24, 2, num_blocks, 96, k, 100),
        resources={DRAFT_MODEL: model(0, 1)} if method == "draft_model" else {},
        executor="serial" if depth == 1 else "threads",
        watchdog_s=120.0,
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("method", [None, "draft_model", "ngram"])
def test_blocks_behind_the_window_are_given_back_and_never_missed(
    method: Method | None, depth: int
) -> None:
    prompts = [[5, 9, 77, 140, 3, 8, 30, 31, 32, 99, 7], [200, 4, 61], [19] * 30]
    model = tiny_model("mistral", 0, torch.float64, vocab_size=VOCAB, sliding_window=WINDOW)

    engine = windowed_engine(depth, method, 150)
    requests = [
        tiny_request(uid, prompt, SamplingParams(max_tokens=36, ignore_eos=True))
        for uid, prompt in enumerate(prompts)
    ]
    table = engine.new_table()
    for request in requests:
        table.submit(fitted(engine, request))
    engine.run(table)
    assert table.freed_by_window > 3 * 20
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.output_ids == own_greedy(model, prompt, 36)


def test_a_prompt_that_begins_like_an_earlier_one_is_computed_from_there_on() -> None:
    llm = LLM(pipeline="async_speculation", overrides={"scheduler.block_size": "4"})
    line = {"prompt": "Write a short story about a fox named Ida.", "max_tokens": 12}
    first = llm.generate(line)[0]
    again = llm.generate(line)[0]
    assert first.cached_tokens == 0
    assert again.cached_tokens > 8
    assert again.token_ids == first.token_ids
    assert (again.drafted, again.accepted) == (first.drafted, first.accepted)
    asked = llm.generate({**line, "prompt_logprobs": 0})[0]
    assert asked.cached_tokens == 0, "every token of this prompt must be computed"
    assert asked.token_ids == first.token_ids
    assert llm.summary()["cached_tokens"] == again.cached_tokens


def test_completions_of_one_prompt_share_its_blocks_and_draw_with_seeds_of_their_own() -> None:
    llm = LLM(pipeline="async", overrides={"scheduler.block_size": "4"})
    line = {"prompt": "Write a short story about a fox named Ida.", "max_tokens": 10}
    line |= {"temperature": 1.0, "seed": 3}
    [several] = llm.generate({**line, "id": "tale", "n": 3})
    assert [choice.id for choice in several.choices] == ["tale/0", "tale/1", "tale/2"]
    assert several.id == "tale"
    assert several.token_ids == several.choices[0].token_ids
    assert len({choice.token_ids for choice in several.choices}) == 3
    for index, choice in enumerate(several.choices):
        alone = llm.generate({**line, "seed": 3 + index})[0]
        assert alone.token_ids == choice.token_ids
    told = several.to_json()
    assert [choice["text"] for choice in told["choices"]] == [c.text for c in several.choices]
