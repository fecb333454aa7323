"""A long text beside short prompts: attention is told how much of the block tables is whose."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.requests.params import SamplingParams
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_request


def test_a_row_with_a_long_text_does_not_make_the_others_as_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[AttentionBatch] = []
    forward = CausalLM.forward

    def watched(self: CausalLM, ids: Any, batch: AttentionBatch, *args: Any, **given: Any) -> Any:
        if len(batch.query_lens) == len(lengths):
            seen.append(batch)
        return forward(self, ids, batch, *args, **given)

    monkeypatch.setattr(CausalLM, "forward", watched)
    draw, lengths = random.Random(1), (70, 3, 5, 4)
    engine = tiny_engine(TinyConfig(token_budget=96, max_rows=4))
    requests = [
        tiny_request(
            uid, [draw.randrange(3, 90) for _ in range(length)], SamplingParams(max_tokens=9)
        )
        for uid, length in enumerate(lengths)
    ]
    serve(engine, requests)
    assert [request.error for request in requests] == [None] * 4
    prompts, *decodes = seen
    assert prompts.blocks is not None
    size = prompts.cache.block_size
    assert all(
        held * size >= length and held <= -(-(length + 9) // size)
        for held, length in zip(prompts.blocks, lengths, strict=True)
    )
    assert max(prompts.blocks) == prompts.block_tables.shape[1] > 4 * min(prompts.blocks)
    assert decodes
