"""A long text beside short prompts: attention is told how much of the block tables is whose."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.paged_cache import PagedCache
from stepweave.policies.chosen import Policies
from stepweave.policies.drafting import DraftView
from stepweave.policies.policy import Policy
from stepweave.requests.params import SamplingParams
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_request


def watched(monkeypatch: pytest.MonkeyPatch) -> list[AttentionBatch]:
    """The batches of all passes through the model from now on, each noted before it is computed."""
    passes: list[AttentionBatch] = []
    forward = CausalLM.forward

    def noted(self: CausalLM, ids: Any, batch: AttentionBatch, *args: Any, **given: Any) -> Any:
        passes.append(batch)
        return forward(self, ids, batch, *args, **given)

    monkeypatch.setattr(CausalLM, "forward", noted)
    return passes


def test_a_row_with_a_long_text_does_not_make_the_others_as_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered: set[tuple[int, int]] = set()
    gather = PagedCache.gather_heads

    def counted(self: PagedCache, layer: int, rows: torch.Tensor) -> Any:
        gathered.add((len(passes), rows.shape[2]))
        return gather(self, layer, rows)

    draw, lengths = random.Random(1), (70, 3, 5, 4)
    engine = tiny_engine(TinyConfig(token_budget=96, max_rows=4))
    monkeypatch.setattr(PagedCache, "gather_heads", counted)
    passes = watched(monkeypatch)
    requests = [
        tiny_request(
            uid, [draw.randrange(3, 90) for _ in range(length)], SamplingParams(max_tokens=9)
        )
        for uid, length in enumerate(lengths)
    ]
    serve(engine, requests)
    assert [request.error for request in requests] == [None] * 4
    prompts, *decodes = (each for each in passes if len(each.query_lens) == len(lengths))
    assert prompts.blocks is not None
    size = prompts.cache.block_size
    assert all(
        held * size >= length and held <= -(-(length + 9) // size)
        for held, length in zip(prompts.blocks, lengths, strict=True)
    )
    assert max(prompts.blocks) == prompts.block_tables.shape[1] > 4 * min(prompts.blocks)
    assert decodes
    assert prompts is passes[0]
    assert {keys for at, keys in gathered if at == 1} == {64, 128}, (
        "keys come in multiples of 64; of the short rows fewer"
    )


def test_rows_that_get_blocks_in_turn_have_their_newest_keys_each_time() -> None:
    """Short rows that come to the end of a block one step after the other."""
    draw = random.Random(2)
    prompts = [[draw.randrange(3, 90) for _ in range(length)] for length in (70, 6, 5, 4)]

    def served(which: list[int]) -> list[list[int]]:
        engine = tiny_engine(TinyConfig(token_budget=96, max_rows=4))
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        return serve(engine, [tiny_request(uid, prompts[uid], params) for uid in which])

    alone = [served([uid])[0] for uid in range(4)]
    assert served([0, 1, 2, 3]) == alone


def test_a_step_gathers_no_keys_of_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt has all its blocks from the start, but its first chunk reads few of them."""
    engine = tiny_engine(TinyConfig(token_budget=16))
    passes = watched(monkeypatch)
    request = tiny_request(0, [3 + token % 80 for token in range(70)], SamplingParams(max_tokens=3))
    serve(engine, [request])
    assert request.error is None
    size = passes[0].cache.block_size
    assert [batch.block_tables.shape[1] for batch in passes[:5]] == [
        -(-end // size) for end in (16, 32, 48, 64, 70)
    ]


class Three(Policy):
    """Three drafts, whatever the pipeline has."""

    own: bool = True
    past: int = 0

    def drafts(self, row: DraftView) -> int:
        return min(3, row.most)


def test_a_row_that_is_offered_fewer_drafts_gathers_no_more_than_one_that_has_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = watched(monkeypatch)

    def served(drafts: int) -> tuple[list[int], list[int]]:
        passes.clear()
        policies = Policies(drafting=Three())
        config = TinyConfig(draft_tokens=drafts, method="eagle3", policies=policies)
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        [tokens] = serve(tiny_engine(config), [tiny_request(0, [5, 6, 7], params)])
        return tokens, [batch.block_tables.shape[1] for batch in passes]

    assert served(8) == served(3)
