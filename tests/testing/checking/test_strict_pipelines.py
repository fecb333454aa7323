"""The real decode pipelines keep to their declarations: no report, and the same tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest
import torch
from transformers import PreTrainedModel

from stepweave.executors import NodeFailure
from stepweave.executors.errors import ContractViolation
from stepweave.graph.node import OpContext
from stepweave.policies.acceptance import Rejection
from stepweave.policies.chosen import Policies
from stepweave.requests.request import SamplingParams
from stepweave.testing import engines as testing
from stepweave.testing.engines import TinyConfig, fitted, tiny_engine, tiny_requests
from stepweave.testing.models import tiny_model
from tests.device.pipelines import DRAFTERS, REGEX
from tests.shares import one_in

EVERY = {
    **DRAFTERS,
    "ngram, rejection": TinyConfig(
        draft_tokens=2, method="ngram", policies=Policies(acceptance=Rejection())
    ),
}

RUNS = ((1, "serial"), (2, "threads"), (3, "threads"))

Tokens = list[tuple[list[int], int, int]]


def params(structured: bool) -> list[SamplingParams]:
    grammar = REGEX if structured else None
    return [
        SamplingParams(max_tokens=8, logprobs=2),
        SamplingParams(max_tokens=7, temperature=0.9, seed=3, top_k=40, repetition_penalty=1.2),
        SamplingParams(max_tokens=8, structured_outputs=grammar, logit_bias=((9, 1.0),)),
        SamplingParams(max_tokens=6, prompt_logprobs=1, structured_outputs=grammar),
    ]


def served(config: TinyConfig) -> Tokens:
    engine = tiny_engine(config)
    requests = tiny_requests(params(config.structured))
    table = engine.new_table()
    for request in requests:
        table.submit(fitted(engine, request))
    report = engine.run(table)
    assert report.unused == (), "each declared access happens"
    assert [request.error for request in requests] == [None] * len(requests)
    return [(list(r.output_ids), r.drafted, r.accepted) for r in requests]


@cache
def unchecked(config: TinyConfig) -> Tokens:
    return served(config)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("run", "drafter", "grammar"), one_in(3, RUNS, EVERY, ("free", "structured"))
)
def test_no_node_does_what_it_did_not_declare(
    run: tuple[int, str], drafter: str, grammar: str
) -> None:
    """The serial loop at depth 1, unchecked, is the reference."""
    depth, executor = run
    config = replace(EVERY[drafter], structured=grammar == "structured")
    checked = replace(config, depth=depth, executor=executor, check="strict")
    assert served(checked) == unchecked(config)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("family", ["gemma3", "gpt_oss"])
def test_models_of_other_families_ask_nothing_that_they_may_not(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ropes and windows; experts, which ask the host on a CPU."""

    def pair(dtype: torch.dtype, **size: int) -> tuple[PreTrainedModel, PreTrainedModel]:
        sizes = {"vocab_size": testing.VOCAB, "max_position_embeddings": size["context"]}
        return tiny_model(family, 0, dtype, **sizes), tiny_model(family, 1, dtype, **sizes)

    monkeypatch.setattr(testing, "tiny_pair", pair)
    config = TinyConfig(depth=2, draft_tokens=2, dtype=torch.float32, invariant=True)
    assert served(replace(config, check="strict")) == served(config)


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_the_real_drafter_with_the_bug_of_a_real_engine_is_caught(
    executor: Literal["serial", "threads"],
) -> None:
    """It counted positions on in place, in the metadata that the main model had got too."""
    engine = tiny_engine(replace(EVERY["draft model"], executor=executor, check="strict"))
    plan = engine.plan
    drafts = plan.graph.vertices["draft.device"].op.run
    assert drafts is not None

    def buggy(ctx: OpContext) -> None:
        inputs = ctx.read("inputs")
        if inputs is not None:
            with torch.inference_mode():
                inputs.positions.add_(1)
        drafts(ctx)

    nodes = [
        replace(node, device=(replace(node.device[0], run=buggy),))
        if node.name == "draft"
        else node
        for node in plan.graph.nodes
    ]
    engine.plan = replace(plan, graph=replace(plan.graph, nodes=tuple(nodes)))
    requests = tiny_requests(params(False))
    table = engine.new_table()
    for request in requests:
        table.submit(fitted(engine, request))
    with pytest.raises(NodeFailure) as caught:
        engine.run(table)
    cause = caught.value.__cause__
    assert isinstance(cause, ContractViolation)
    assert (cause.code, cause.op, cause.value) == ("SW-INPUT-CHANGED", "draft.device", "inputs")
    # Ids and positions are parts of one buffer; the part that is named is the first in it.
    assert re.search(r"changes inputs\.(ids|positions) in place", str(cause))
    assert cause.file == __file__
