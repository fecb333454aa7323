"""Every drafter, wherever it is placed and however its batches are laid out, changes no token."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from stepweave import LLM
from stepweave.configs.errors import ConfigError
from stepweave.graph.errors import GraphError
from stepweave.graph.parameters import read
from stepweave.graph.verifier.verify import verify
from stepweave.nodes import registry
from stepweave.nodes.bitmask import GrammarOptions
from stepweave.nodes.data import Inputs, Proposal, Sampled
from stepweave.nodes.drafter import Drafter
from stepweave.nodes.values import INPUTS, SAMPLED
from stepweave.policies.acceptance import Rejection, Synthetic
from stepweave.policies.chosen import Policies
from stepweave.requests.request import Request, SamplingParams
from stepweave.serving.engine import Engine
from stepweave.serving.pipeline import compiled
from stepweave.testing.engines import (
    Method,
    TinyConfig,
    serve,
    tiny_engine,
    tiny_pipeline,
    tiny_request,
    tiny_requests,
)
from tests.shares import one_in

WITH_WEIGHTS: list[Method] = ["draft_model", "eagle", "eagle3", "mtp", "medusa"]
METHODS: list[Method] = [*WITH_WEIGHTS, "ngram", "suffix"]
BASE = TinyConfig(draft_tokens=3)
ASKED = [
    SamplingParams(max_tokens=20),
    SamplingParams(max_tokens=15, temperature=0.8, seed=3, top_k=30),
    SamplingParams(max_tokens=11),
]


def outcome(
    config: TinyConfig, asked: Sequence[SamplingParams] = ASKED
) -> tuple[list[list[int]], list[tuple[int, int]], Engine]:
    engine = tiny_engine(config)
    requests = tiny_requests(asked)
    tokens = serve(engine, requests)
    assert [request.error for request in requests] == [None] * len(requests)
    return tokens, [(request.drafted, request.accepted) for request in requests], engine


@pytest.mark.parametrize("method", WITH_WEIGHTS)
def test_drafters_with_weights_get_some_drafts_accepted_and_not_all(method: Method) -> None:
    plain, _, _ = outcome(TinyConfig())
    tokens, counts, engine = outcome(replace(BASE, method=method))
    assert tokens == plain
    drafted, accepted = (sum(column) for column in zip(*counts, strict=True))
    assert 0 < accepted < drafted
    assert engine.totals.steps < sum(map(len, tokens))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "mtp"])
@pytest.mark.parametrize("depth", [1, 2])
def test_leaving_refused_tokens_out_of_the_batch_changes_no_draft(
    method: Method, depth: int
) -> None:
    config = replace(BASE, method=method, depth=depth, token_budget=11)
    config = replace(config, executor="serial" if depth == 1 else "threads")
    tokens, counts, padded = outcome(config)
    again, unpadded_counts, unpadded = outcome(replace(config, padded=False))
    assert (again, unpadded_counts) == (tokens, counts)
    assert len(unpadded.plan.waits) == len(padded.plan.waits) + 1
    waits = {(wait.source, wait.target) for wait in unpadded.plan.waits}
    assert ("d2h_counts.device", "draft.host") in waits


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", METHODS)
def test_a_stream_of_its_own_is_a_placement(method: Method) -> None:
    config = replace(BASE, method=method, depth=2, executor="threads")
    tokens, counts, _ = outcome(config)
    moved = tiny_engine(config, settings={"nodes.draft.stream": "draft"})
    requests = tiny_requests(ASKED)
    assert serve(moved, requests) == tokens
    assert [(request.drafted, request.accepted) for request in requests] == counts
    assert [op for op, _ in moved.plan.actors["draft"]] == ["draft.device"]
    verify(moved.plan)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", METHODS)
def test_each_request_has_its_own_draft_length_and_may_have_none(method: Method) -> None:
    lengths: list[int | None] = [0, 1, 2, None]
    plain = [SamplingParams(max_tokens=18, seed=1) for _ in lengths]
    asked = [replace(p, draft_tokens=n) for p, n in zip(plain, lengths, strict=True)]
    expected, _, _ = outcome(TinyConfig(), plain)
    seen = set()
    for depth, executor in [(1, "serial"), (2, "threads"), (3, "threads")]:
        config = replace(BASE, method=method, depth=depth)
        config = replace(config, executor=executor)
        tokens, counts, _ = outcome(config, asked)
        assert tokens == expected
        seen.add(tuple(counts))
    assert len(seen) == 1
    counts = list(seen.pop())
    assert counts[0] == (0, 0)
    if method in WITH_WEIGHTS:
        steps = [
            len(row) - 1 - accepted for row, (_, accepted) in zip(expected, counts, strict=True)
        ]
        # One step more than that where the end cut off an accepted draft's successor.
        assert 0 < counts[1][0] <= steps[1] + 1
        assert steps[2] < counts[2][0] <= 2 * (steps[2] + 1)


def test_when_nobody_wants_drafts_the_drafter_does_nothing() -> None:
    asked = [SamplingParams(max_tokens=9, draft_tokens=0)] * 3
    tokens, counts, engine = outcome(BASE, asked)
    assert counts == [(0, 0)] * 3
    assert tokens == outcome(TinyConfig(), asked)[0]
    assert engine.totals.steps >= max(map(len, tokens))


def test_look_up_drafts_come_from_the_text_so_far() -> None:
    def request() -> list[Request]:
        return [tiny_request(0, [17, 44, 101, 9, 230, 75, 18], SamplingParams(max_tokens=40))]

    plain = serve(tiny_engine(TinyConfig()), request())[0]
    text = [17, 44, 101, 9, 230, 75, 18, *plain]
    # After a token that was there before, what followed it is offered; else nothing is.
    again = sum(token in text[: 7 + at] for at, token in enumerate(plain[:-1]))
    assert 0 < again < len(plain) - 1
    for shortest, most in [(1, 4 * again), (30, 0)]:
        engine = tiny_engine(
            replace(BASE, method="ngram", draft_tokens=4),
            settings={"nodes.draft.shortest": shortest, "nodes.draft.longest": 30},
        )
        requests = request()
        assert serve(engine, requests) == [plain]
        assert 0 < requests[0].drafted <= most or requests[0].drafted == most == 0


def test_synthetic_acceptance_keeps_as_many_drafts_as_it_says() -> None:
    asked = [SamplingParams(max_tokens=60, seed=n, ignore_eos=True) for n in range(4)]
    for rate in (0.0, 1.0):
        engine = tiny_engine(replace(BASE, policies=Policies(acceptance=Synthetic(rates=(rate,)))))
        requests = tiny_requests([replace(each, max_tokens=24) for each in asked], longest=8)
        serve(engine, requests)
        assert engine.totals.drafted > 0
        # What a stop or the end of the context cuts off is not counted as accepted.
        assert engine.totals.accepted <= rate * engine.totals.drafted
        assert engine.totals.accepted >= rate * (engine.totals.drafted - 3 * len(requests))
    engine = tiny_engine(replace(BASE, policies=Policies(acceptance=Synthetic(rates=(0.5,)))))
    serve(engine, tiny_requests(asked, longest=8))
    assert 0.2 < engine.totals.accepted / engine.totals.drafted < 0.4  # (½ + ¼ + ⅛) / 3


REJECTION = replace(BASE, policies=Policies(acceptance=Rejection()))
ROOM: tuple[dict[str, Any], ...] = ({}, {"token_budget": 9}, {"num_blocks": 22})
DRAWN = [
    *(SamplingParams(max_tokens=16, temperature=0.9, seed=n, top_p=0.95) for n in range(3)),
    SamplingParams(max_tokens=12),
]


@cache
def by_serial_loop(method: Method) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Tokens and counts of `DRAWN` at depth 1, with room for all."""
    return outcome(replace(REJECTION, method=method), DRAWN)[:2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("run", "room", "method"),
    one_in(3, ((1, "serial"), (2, "threads"), (3, "threads")), ROOM, METHODS),
)
def test_rejection_sampling_gives_the_same_tokens_and_counts_at_every_depth(
    run: tuple[int, str], room: dict[str, Any], method: Method
) -> None:
    depth, executor = run
    config = replace(REJECTION, method=method, depth=depth, executor=executor, **room)
    tokens, counts, engine = outcome(config, DRAWN)
    assert (tokens, counts) == by_serial_loop(method)
    assert ("draft_probs" in engine.plan.graph.states) == (method in WITH_WEIGHTS)
    assert tokens[3] == outcome(TinyConfig(), DRAWN)[0][3]  # greedy rows are as without drafts


def test_two_drafters_in_a_step_are_refused_at_the_second() -> None:
    settings = {"nodes.other.kind": "ngram", "nodes.other.after": "draft"}
    with pytest.raises(GraphError, match=r"'other.device' writes 'drafts', which 'draft.device'"):
        tiny_engine(BASE, settings=settings)


@pytest.mark.parametrize("method", METHODS)
def test_no_drafter_brings_back_a_wait_for_the_host(method: Method) -> None:
    plan = compiled(tiny_pipeline(replace(BASE, method=method, depth=2, structured=True)))
    assert [(wait.source, wait.target) for wait in plan.waits] == [
        ("draft.device", "d2h_copy.device"),
        ("d2h_copy.device", "commit.host.advance"),
    ]


def test_another_package_can_bring_a_drafter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def propose(
        inputs: Inputs | None = read(INPUTS), sampled: Sampled | None = read(SAMPLED)
    ) -> Proposal | None:
        """Say the last token again, as often as the row has room."""
        sample = None if inputs is None else inputs.sample
        if sample is None or sampled is None or sample.draft_width == 0:
            return None
        last = sampled.tokens.gather(1, sampled.counts[:, None] - 1)
        width = sample.draft_width
        return Proposal(last.expand(-1, width), torch.full_like(last[:, 0], width))

    echo = Drafter("echo", "say it again", propose)

    class Installed:
        name, value, dist = "echo", "another_package:KIND", None
        group = registry.DRAFTERS

        def load(self) -> Drafter:
            return echo

    monkeypatch.setattr(
        registry, "registered", lambda group: [Installed()] * (group == registry.DRAFTERS)
    )
    file = tmp_path / "echo.yaml"
    file.write_text(
        "version: 2\nextends: async\nnodes:\n  draft: {kind: echo, after: sample, tokens: 2}\n"
    )
    llm = LLM(pipeline=file)
    prompt = "Write a short story about a fox named Ida."
    [found] = llm.generate(prompt, SamplingParams(max_tokens=30))
    [plain] = LLM(pipeline="synchronous").generate(prompt, SamplingParams(max_tokens=30))
    assert found.token_ids == plain.token_ids
    assert found.drafted > 40
    file.write_text("version: 2\nextends: async\nnodes:\n  draft: {after: sample, tokens: 2}\n")
    with pytest.raises(ConfigError, match=r"unknown node kind 'draft'.*needs a `kind`"):
        LLM(pipeline=file)


def test_a_drafter_must_be_told_how_many_tokens() -> None:
    with pytest.raises(TypeError, match="its options must derive from DrafterOptions"):
        Drafter("echo", "x", lambda: None, options=GrammarOptions)  # type: ignore[arg-type]
