"""Tokens that a grammar forces are drafted: tokens unchanged, counts equal at each depth."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch

from stepweave import LLM
from stepweave.graph.verifier.verify import verify
from stepweave.nodes.data import Proposal, Sampled
from stepweave.nodes.ops.forcing import with_forced
from stepweave.nodes.tree import Tree
from stepweave.nodes.values import TOKENIZER
from stepweave.policies.acceptance import Rejection
from stepweave.policies.chosen import Policies
from stepweave.requests.params import SamplingParams
from stepweave.serving.engine import Engine
from stepweave.testing.engines import (
    VOCAB,
    Method,
    TinyConfig,
    serve,
    tiny_engine,
    tiny_requests,
)
from stepweave.testing.models import tiny_tokenizer
from tests.serving.matrix import GRAMMARS, MODULES, SCHEMA, TREES
from tests.shares import one_in

BASE = TinyConfig(draft_tokens=3, structured=True)
JUMP: dict[str, Any] = {"nodes.jump_forward.after": "bitmask"}
RUNS = ((1, "serial"), (2, "threads"), (3, "threads"))
SETS = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 4},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
}
RULES = {"coupled": Policies(), "rejection": Policies(acceptance=Rejection())}


def engine_of(config: TinyConfig, jump: bool) -> Engine:
    resources = {TOKENIZER: tiny_tokenizer(VOCAB)}
    return tiny_engine(config, settings=JUMP if jump else None, resources=resources)


def outcome(
    config: TinyConfig, sampling: str, grammars: str, jump: bool
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    params = [
        SamplingParams(max_tokens=24, structured_outputs=grammar, **SETS[sampling])  # type: ignore[arg-type]
        for grammar in (GRAMMARS[grammars] * 4)[:4]
    ]
    requests = tiny_requests(params)
    tokens = serve(engine_of(config, jump), requests)
    assert [request.error for request in requests] == [None] * len(requests)
    return tokens, [(request.drafted, request.accepted) for request in requests]


@cache
def plain(sampling: str, grammars: str) -> list[list[int]]:
    return outcome(TinyConfig(structured=True), sampling, grammars, False)[0]


@cache
def at_depth_1(
    method: str, sampling: str, grammars: str, rule: str
) -> tuple[list[list[int]], list[tuple[int, int]]]:
    config = replace(drafting(method), policies=RULES[rule], check="strict")
    return outcome(config, sampling, grammars, True)


def drafting(method: str) -> TinyConfig:
    """`BASE` with a drafter of the matrix."""
    if method in TREES:
        kind, tree, tokens = TREES[method]
        modules = MODULES.get(method, 1)
        return replace(BASE, method=kind, tree=tree, draft_tokens=tokens, modules=modules)
    return replace(BASE, method=cast(Method, method))


DRAFTERS = ("draft_model", "eagle3", "ngram", "suffix", *TREES)


@pytest.mark.parametrize(
    ("run", "method", "sampling", "grammars", "rule"),
    one_in(24, RUNS[1:], DRAFTERS, SETS, ("schema", "structural tag", "mixed"), RULES),
)
def test_tokens_are_those_without_and_counts_equal_at_every_depth(
    run: tuple[int, str], method: str, sampling: str, grammars: str, rule: str
) -> None:
    depth, executor = run
    config = replace(drafting(method), depth=depth, executor=executor, policies=RULES[rule])
    found = outcome(config, sampling, grammars, True)
    assert found == at_depth_1(method, sampling, grammars, rule)
    if rule == "coupled" or sampling == "greedy":
        assert found[0] == plain(sampling, grammars)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_that_gave_way_is_drafted_what_it_would_have_been(depth: int) -> None:
    config = replace(BASE, method="ngram", depth=depth, num_blocks=17)
    params = [SamplingParams(max_tokens=24, structured_outputs=SCHEMA)] * 4
    requests = tiny_requests(params)
    engine = engine_of(config, True)
    tokens = serve(engine, requests)
    assert engine.totals.preemptions > 1
    counts = [(request.drafted, request.accepted) for request in requests]
    assert (tokens, counts) == at_depth_1("ngram", "greedy", "schema", "coupled")


def test_forced_tokens_are_accepted_where_the_drafter_had_none() -> None:
    config = replace(BASE, method="ngram")
    tokens, counts = outcome(config, "greedy", "schema", True)
    again, without = outcome(config, "greedy", "schema", False)
    assert tokens == again == plain("greedy", "schema")
    assert sum(accepted for _, accepted in counts) > sum(accepted for _, accepted in without)


def test_the_look_at_what_is_forced_brings_no_wait_for_the_device() -> None:
    with_it = engine_of(replace(BASE, method="ngram", depth=2, executor="threads"), True).plan
    without = engine_of(replace(BASE, method="ngram", depth=2, executor="threads"), False).plan
    assert [(w.source, w.target) for w in with_it.waits] == [
        (w.source, w.target) for w in without.waits
    ]
    verify(with_it)


def sampled_of(tokens: list[list[int]]) -> Sampled:
    counts = torch.tensor([len(each) for each in tokens])
    width = int(counts.max())
    rows = [each + [-1] * (width - len(each)) for each in tokens]
    return Sampled(torch.tensor(rows), counts, counts - 1)


def test_forced_tokens_take_the_place_of_others_and_keep_those_that_agree() -> None:
    forced = torch.full((4, 2, 3), -1, dtype=torch.int32)
    forced[0, 0] = torch.tensor([5, 6, 7])  # after the first position, which gave the newest token
    forced[1, 1] = torch.tensor([5, 6, -1])
    forced[2, 0] = torch.tensor([5, 6, -1])  # but 8 was sampled: no such text was forced
    forced[3, 0] = torch.tensor([5, 6, -1])
    sampled = sampled_of([[5], [4, 5], [8], [5]])
    theirs = torch.tensor([[6, 9, 9], [9, 9, 9], [1, 2, 3], [6, 2, 3]])
    log_probs = torch.full((4, 3, 10), 0.1).log()
    found = with_forced(Proposal(theirs, torch.tensor([3, 3, 2, 3]), log_probs), forced, sampled, 3)
    assert found.tokens.tolist() == [[6, 7, 9], [6, 9, 9], [1, 2, 3], [6, 2, 3]]
    assert found.valid is not None
    assert found.valid.tolist() == [2, 1, 2, 3]
    assert found.log_probs is not None
    sure = found.log_probs.exp().argmax(-1)
    assert sure[0, :2].tolist() == [6, 7]
    assert float(found.log_probs[0, 0, 6]) == 0
    assert float(found.log_probs[0, 0].exp().sum()) == 1
    assert torch.equal(found.log_probs[2], log_probs[2])
    alone = with_forced(None, forced, sampled, 3)
    assert alone.tokens.tolist() == [[6, 7, -1], [6, -1, -1], [-1, -1, -1], [6, -1, -1]]
    assert alone.valid is not None
    assert alone.valid.tolist() == [2, 1, 0, 1]


def test_forced_tokens_are_the_trunk_of_a_tree_that_has_them_and_else_all_of_it() -> None:
    shape = Tree.of([[0], [0, 0], [0, 1], [1], [1, 0]])  # in the order of their places 1 … 5
    branches = shape.branches().expand(4, -1, -1)
    forced = torch.full((4, 6, 6), -1, dtype=torch.int32)
    forced[0, 0, :2] = torch.tensor([5, 6])  # the second way after the root
    forced[1, 2, :3] = torch.tensor([5, 6, 7])  # what stands after place 2, which was kept
    forced[2, 0, :4] = torch.tensor([5, 6, 7, 8])  # longer than any way of the tree
    sampled = replace(sampled_of([[5], [4, 5], [5], [5]]), paths=torch.tensor([[0, 2]] * 4))
    theirs = torch.tensor([[9, 1, 2, 6, 3], [6, 1, 7, 9, 7], [6, 7, 2, 9, 3], [9, 1, 2, 6, 3]])
    drawn = torch.full((4, 5, 10), 0.1).log()
    proposal = Proposal(theirs, torch.tensor([5, 5, 5, 4]), drawn, branches)
    found = with_forced(proposal, forced, sampled, 5, trees=True)
    assert found.valid is not None
    assert found.valid.tolist() == [5, 5, 3, 4]
    assert found.tokens[:2].tolist() == [[-1, -1, -1, 6, 3], [6, -1, 7, -1, -1]]
    assert found.tokens[2, :3].tolist() == [6, 7, 8]
    assert found.tokens[3].tolist() == [9, 1, 2, 6, -1]
    assert found.branches is not None
    line = Tree(tuple(range(5))).branches()
    assert torch.equal(found.branches[2], line)
    assert torch.equal(found.branches[[0, 1, 3]], branches[:3])
    assert found.log_probs is not None
    sure = found.log_probs.amax(dim=-1) == 0
    assert sure[0, 3]
    assert not sure[0, 4], "what comes behind was drawn"
    assert sure[2, :3].all()
    assert not sure[3].any()
    alone = with_forced(None, forced, sampled, 5, trees=True)
    assert alone.branches is not None
    assert torch.equal(alone.branches[0], line)
    assert alone.tokens[2].tolist() == [6, 7, 8, -1, -1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_a_drafting_model_reads_what_was_forced_in_place_of_its_drafts(rule: str) -> None:
    """After giving way it reads the text anew: its drafts are those that it would have had."""
    texts = "Zebra quokka umbrella [a-z]{5} xylophone vortex [a-z]{5} quantum jigsaw [a-z]{4}"
    asked = [
        SamplingParams(
            max_tokens=48, temperature=1.3, seed=seed, structured_outputs={"regex": texts}
        )
        for seed in range(3)
    ]

    def served(blocks: int) -> tuple[list[Any], int]:
        draft = {"kind": "draft_model", "after": "sample", "stream": "compute", "tokens": 4}
        keys = {
            "extends": "async_jump_forward",
            # No process that tries the grammar: it takes longer to start than to serve.
            "nodes": {"draft": draft, "bitmask": {"compile_limit_s": None}},
            "policies": {"acceptance": rule},
            "scheduler": {"num_blocks": blocks, "max_rows": 3, "prefix_cache": False},
            "graphs": False,
        }
        with LLM(pipeline=keys) as llm:
            found = llm.generate(["Write a short story about a fox named Ida."] * 3, asked)
            preempted = llm.summary()["preemptions"]
        return [
            (each.token_ids, each.drafted, each.accepted, each.error) for each in found
        ], preempted

    expected, none = served(400)
    found, some = served(10)
    assert (none, some > 0) == (0, True)
    assert found == expected
    assert sum(accepted for _, _, accepted, _ in found) > 20
