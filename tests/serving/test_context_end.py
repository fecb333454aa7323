"""A row at the end of its context, with steps in flight behind it: no neighbour notices."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave import LLM, SamplingParams

TREE: dict[str, Any] = {
    "nodes.keep_path": {"after": "sample"},
    "nodes.draft.tree": [[0], [0, 0], [1]],
    "nodes.draft.tokens": 3,
}
STORY = "Write a short story about a fox."


@pytest.mark.sampled(3)
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize(
    ("pipeline", "options", "dry"),
    [("async_ngram", {}, 0.0), ("async_eagle", TREE, 0.0), ("async_suffix", {}, 0.8)],
    ids=["look-up", "tree", "dry"],
)
def test_a_row_that_has_ended_is_no_index(
    pipeline: str, options: dict[str, Any], dry: float, depth: int
) -> None:
    """Steps that were in flight when it ended still have it, at places behind the context."""
    beside = SamplingParams(max_tokens=40, ignore_eos=True)
    with LLM(pipeline=pipeline, overrides={"depth": depth, **options}) as llm:
        context = llm.engine.limits.context_length
        [alone] = llm.generate(STORY, beside)
        to_the_end = SamplingParams(
            max_tokens=200, ignore_eos=True, logit_bias=((40, 100.0),), dry_multiplier=dry
        )
        prompts: list[Any] = [[5] * (context - 12), STORY]
        full, neighbour = llm.generate(prompts, [to_the_end, beside])
        assert llm.engine.totals.failed_steps == 0
    assert (full.error, full.finish_reason, len(full.token_ids)) == (None, "length", 12)
    assert (neighbour.error, neighbour.token_ids) == (None, alone.token_ids)
