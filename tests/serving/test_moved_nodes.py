"""Any node of a shipped pipeline may have a host thread of its own: it does what it declares.

The actors move by priorities that are drawn at random and change (`Interleaved`): a thread may run
far ahead of the others or stay behind, as far as the plan lets it. Checking mode looks on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from stepweave import LLM, RequestOutput, load_config, verify
from stepweave.cli.planned import planned
from stepweave.configs.load import shipped
from stepweave.configs.schema import PipelineConfig
from stepweave.nodes.ops.swapping import HostBlocks
from stepweave.requests.swap import Swaps
from stepweave.testing import Interleaved

ONCE = (
    ("adaptive", "d2h_copy"),
    ("async", "d2h_copy"),
    ("async_allowed_drafts", "d2h_tokens"),
    ("async_allowed_drafts", "draft_mask"),
    ("async_eagle", "draft"),
    ("async_eagle3_grammar", "bitmask"),
    ("async_fork", "fork"),
    ("async_grammar", "commit"),
    ("async_jump_forward", "jump_forward"),
    ("async_medusa", "forward"),
    ("async_mtp", "commit"),
    ("async_ngram", "sample"),
    ("async_speculation", "prepare_inputs"),
    ("async_suffix", "draft"),
    ("async_swap", "swap"),
    ("async_tree", "keep_path"),
    ("async_vision", "encode"),
    ("base", "forward"),
    ("drafter_stream", "draft"),
    ("drafts_by_load", "draft"),
    ("grammar_worker", "schedule"),
    ("mask_stream", "bitmask"),
    ("quickstart", "prepare_inputs"),
    ("synchronous", "commit"),
)
"""A node of each pipeline, each node at least once; the others every night."""

TIGHT = {
    "async_swap": {
        "scheduler.num_blocks": 8,
        "scheduler.block_size": 4,
        "scheduler.prefix_cache": False,
    }
}
"""So few blocks that a request gives way, where a node has nothing to do otherwise."""

PROMPTS: list[dict[str, Any]] = [
    {"prompt": "Write a story", "max_tokens": 5},
    {"prompt": "One two", "max_tokens": 4, "temperature": 0.8, "seed": 3, "stop_token_ids": [5]},
    {"prompt": "Say a", "max_tokens": 5, "min_tokens": 3, "logprobs": 1, "bad_words": ["the"]},
]
REGEX = {"regex": "[a-z ]{3,30}"}

Told = list[tuple[tuple[int, ...], str | None, int, int, Any]]


def pipelines() -> list[str]:
    return [name for name in shipped() if isinstance(load_config(name), PipelineConfig)]


def told(outputs: list[RequestOutput]) -> Told:
    return [
        (each.token_ids, each.error, each.drafted, each.accepted, each.logprobs) for each in outputs
    ]


def lines(llm: LLM) -> list[dict[str, Any]]:
    first, *others = PROMPTS
    masked = any(node.name == "bitmask" for node in llm.engine.plan.graph.nodes)
    return [{**first, "structured_outputs": REGEX} if masked else first, *others]


@cache
def serially(pipeline: str) -> Told:
    """What the plain serial loop gives."""
    with LLM(pipeline=pipeline, overrides={"executor": "serial", "torch_threads": 1}) as llm:
        return told(llm.generate(lines(llm), progress=False))


@cache
def nodes(pipeline: str) -> tuple[str, ...]:
    """Those of the pipeline."""
    return tuple(node.name for node in planned(pipeline).graph.nodes)


@contextmanager
def copied_back() -> Iterator[list[int]]:
    """How many blocks came back from host memory, in each step that had such."""
    counts: list[int] = []

    def counted(self: HostBlocks, caches: Any, swaps: Swaps) -> None:
        if swaps.into:
            counts.append(len(swaps.into))
        copy(self, caches, swaps)

    copy = HostBlocks.swap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostBlocks, "swap", counted)
        yield counts


def check(pipeline: str, node: str, seed: int, executor: str | Interleaved | None = None) -> None:
    expected = serially(pipeline)
    overrides = {
        "actors": ["driver", "grammar", "suffix", "encoder", "own"],
        f"nodes.{node}.actor": "own",
        "check": "strict",
        "executor": "serial",
        "torch_threads": 1,
        **TIGHT.get(pipeline, {}),
    }
    with LLM(pipeline=pipeline, overrides=overrides) as llm:
        plan = llm.engine.plan
        assert {vertex.actor for vertex in plan.graph.vertices.values()} >= {"own"}
        verify(plan)
        llm.engine.executor = executor or Interleaved(seed)
        with copied_back() as blocks:
            found = told(llm.generate(lines(llm), progress=False))
    assert found == expected
    assert bool(blocks) == (pipeline in TIGHT)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("pipeline", "node"), ONCE)
def test_a_node_on_a_thread_of_its_own_changes_no_token(pipeline: str, node: str) -> None:
    check(pipeline, node, seed=1)


def test_every_pipeline_and_every_node_is_tried() -> None:
    assert list(dict(ONCE)) == pipelines()
    assert {node for _, node in ONCE} == {node for name in dict(ONCE) for node in nodes(name)}


def test_so_on_real_threads() -> None:
    check("async_speculation", "prepare_inputs", seed=0, executor="threads")


@pytest.mark.nightly
@pytest.mark.parametrize("pipeline", pipelines())
def test_every_node_of_every_pipeline_may_have_a_thread_of_its_own(pipeline: str) -> None:
    for node in nodes(pipeline):
        for seed in (2, 3):
            check(pipeline, node, seed)
        check(pipeline, node, 0, executor="threads")
