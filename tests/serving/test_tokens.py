"""Every combination of features gives the tokens of the plain loop, and equal counts.

The reference is not ours: `generate` of transformers, and for grammars a loop over the whole
model that masks each token with the grammar library's own functions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from stepweave.policies.chosen import Policies
from stepweave.policies.registry import policy
from stepweave.requests.request import Request, SamplingParams
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import (
    EOS,
    TinyConfig,
    fitted,
    serve,
    tiny_engine,
    tiny_pair,
    tiny_request,
    tiny_requests,
)
from tests.serving.reference import expected
from tests.shares import one_in

REGEX = GrammarSpec.from_request({"regex": "[a-z]{2,9}( [0-9]{1,3}){0,2}"})
SCHEMA = GrammarSpec.from_request(
    {
        "json": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
            "required": ["a", "b"],
        }
    }
)
CHOICE = GrammarSpec.from_request({"choice": ["alpha", "beta", "gamma ray"]})
EBNF = GrammarSpec.from_request({"grammar": 'root ::= "<" [a-z]+ ">" | "none"'})

GRAMMARS: dict[str, list[GrammarSpec | None]] = {
    "no grammar": [None, None, None, None],
    "schema": [SCHEMA, SCHEMA, SCHEMA, SCHEMA],
    "regex": [REGEX, REGEX, REGEX, REGEX],
    "mixed": [None, SCHEMA, CHOICE, EBNF],
}
LENGTHS = [14, 9, 17, 12]

SITUATIONS: dict[str, TinyConfig] = {
    "plain": TinyConfig(),
    "chunked prefill": TinyConfig(token_budget=7),
    "preemption": TinyConfig(num_blocks=14),
    "staggered": TinyConfig(),
    "gaps": TinyConfig(token_budget=9, max_rows=4),
    "end of context": TinyConfig(context=32),
}
RUNS = [("serial", 1), ("serial", 2), ("threads", 1), ("threads", 2), ("threads", 3)]
EACH_DEPTH = [RUNS[0], *RUNS[3:]]


def params(
    grammars: Sequence[GrammarSpec | None], *, temperature: float = 0.0, longest: int = 0
) -> list[SamplingParams]:
    return [
        SamplingParams(
            max_tokens=longest or length,
            temperature=temperature,
            top_k=40 if temperature else 0,
            top_p=0.95 if temperature else 1.0,
            seed=100 + index,
            structured_outputs=grammar,
        )
        for index, (grammar, length) in enumerate(zip(grammars, LENGTHS, strict=True))
    ]


@cache
def reference(
    prompt: tuple[int, ...], grammar: GrammarSpec | None, max_tokens: int, context: int
) -> list[int]:
    """Greedy tokens of transformers alone, ended by EOS, max_tokens or the context."""
    model: Any = tiny_pair(torch.float64, context=context)[0]
    room = min(max_tokens, context - len(prompt))
    if grammar is not None:
        params = SamplingParams(max_tokens=room, structured_outputs=grammar)
        return expected(model, prompt, params, context=context).tokens
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=room,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
    return [int(token) for token in out[0, len(prompt) :]]


def run_cell(
    config: TinyConfig, asked: Sequence[SamplingParams], situation: str
) -> tuple[list[Request], int]:
    requests = tiny_requests(asked, context=config.context, longest=16)
    engine = tiny_engine(config)
    table = engine.new_table()
    if situation == "staggered":
        # Each request arrives when the one before it has shown its first text.
        for first, second in itertools.pairwise(requests):
            late = [fitted(engine, second)]
            first.deliver = lambda _, late=late: table.submit(late.pop()) if late else None
        table.submit(fitted(engine, requests[0]))
    else:
        for request in requests:
            table.submit(fitted(engine, request))
    engine.run(table)
    return requests, table.preemptions


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("k", "grammar", "situation"), one_in(3, (0, 3), GRAMMARS, SITUATIONS))
def test_tokens_are_those_of_transformers_and_counts_do_not_depend_on_depth(
    k: int, grammar: str, situation: str
) -> None:
    base = replace(
        SITUATIONS[situation], draft_tokens=k, structured=grammar != "no grammar", executor="serial"
    )
    if situation == "preemption":
        base = replace(base, num_blocks=base.num_blocks if k == 0 else 21)
    asked = params(GRAMMARS[grammar], longest=40 if situation == "end of context" else 0)
    counts: set[tuple[tuple[int, int], ...]] = set()
    preempted = 0
    for executor, depth in RUNS:
        config = replace(base, executor=executor, depth=depth)
        requests, preemptions = run_cell(config, asked, situation)
        preempted += preemptions
        for request in requests:
            expected = reference(
                request.prompt_ids,
                request.params.structured_outputs,
                request.params.max_tokens,
                base.context,
            )
            assert request.error is None
            assert request.output_ids == expected, (executor, depth, request.id)
        counts.add(tuple((request.drafted, request.accepted) for request in requests))
    assert len(counts) == 1, counts
    drafted = sum(each[0] for each in counts.pop())
    if k == 0:
        assert drafted == 0
    elif grammar == "no grammar":
        assert drafted > 0
    if situation == "preemption" and grammar in ("no grammar", "mixed"):
        assert preempted > 0, "this test is about preemption"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("acceptance", "situation"),
    one_in(2, ("coupled", "rejection"), ("plain", "chunked prefill", "preemption", "gaps")),
)
def test_seeded_sampling_is_the_same_at_every_depth(acceptance: str, situation: str) -> None:
    seen: dict[int, set[str]] = {0: set(), 3: set()}
    for k in (0, 3):
        base = replace(
            SITUATIONS[situation],
            draft_tokens=k,
            structured=True,
            policies=Policies(acceptance=policy("acceptance", acceptance)),
        )
        if situation == "preemption":
            base = replace(base, num_blocks=14 if k == 0 else 21)
        asked = params(GRAMMARS["mixed"], temperature=0.9)
        for executor, depth in EACH_DEPTH:
            config = replace(base, executor=executor, depth=depth)
            requests, _ = run_cell(config, asked, situation)
            assert all(request.error is None for request in requests)
            seen[k].add(
                str([(r.output_ids, r.drafted, r.accepted, r.finish_reason) for r in requests])
            )
    assert len(seen[0]) == 1
    assert len(seen[3]) == 1


def test_coupled_sampling_gives_the_same_tokens_with_and_without_a_drafter() -> None:
    asked = params(GRAMMARS["mixed"], temperature=0.9)
    outputs = [
        serve(tiny_engine(TinyConfig(draft_tokens=k, structured=True)), tiny_requests(asked))
        for k in (0, 1, 3)
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    other = params(GRAMMARS["mixed"], temperature=0.0)
    assert outputs[0] != serve(tiny_engine(TinyConfig(structured=True)), tiny_requests(other))


def test_float32_with_the_invariant_path_is_exact_too() -> None:
    asked = params(GRAMMARS["mixed"])
    outputs: set[str] = set()
    for k, depth, executor, budget, blocks in [
        (0, 1, "serial", 64, 200),
        (0, 2, "threads", 7, 200),
        (3, 1, "serial", 64, 200),
        (3, 2, "threads", 9, 200),
        (3, 3, "threads", 64, 21),
    ]:
        config = TinyConfig(
            depth=depth,
            executor=executor,
            draft_tokens=k,
            structured=True,
            token_budget=budget,
            num_blocks=blocks,
            dtype=torch.float32,
            invariant=True,
        )
        outputs.add(str(serve(tiny_engine(config), tiny_requests(asked, longest=16))))
    assert len(outputs) == 1


def test_a_drafter_with_a_short_context_stops_drafting_and_changes_nothing() -> None:
    asked = [SamplingParams(max_tokens=28, ignore_eos=True) for _ in range(3)]
    plain = serve(tiny_engine(TinyConfig()), tiny_requests(asked, longest=10))
    counts = set()
    for executor, depth in EACH_DEPTH:
        engine = tiny_engine(
            TinyConfig(draft_tokens=3, depth=depth, executor=executor),
            drafter_context=24,
        )
        requests = tiny_requests(asked, longest=10)
        assert serve(engine, requests) == plain
        counts.add((engine.totals.drafted, engine.totals.accepted))
    assert len(counts) == 1
    full = tiny_engine(TinyConfig(draft_tokens=3))
    serve(full, tiny_requests(asked, longest=10))
    assert next(iter(counts))[0] < full.totals.drafted


def test_stop_strings_and_stop_tokens_end_a_request_in_the_middle_of_a_window() -> None:
    free = serve(tiny_engine(TinyConfig()), tiny_requests([SamplingParams(max_tokens=30)]))[0]
    stop = free[11]
    first = free.index(stop)
    asked = [SamplingParams(max_tokens=30, stop_token_ids=(stop,))]
    for k, (executor, depth) in [(0, RUNS[0]), (3, RUNS[0]), (3, RUNS[3]), (3, RUNS[4])]:
        config = TinyConfig(draft_tokens=k, executor=executor, depth=depth)
        requests = tiny_requests(asked)
        assert serve(tiny_engine(config), requests) == [free[: first + 1]]
        assert requests[0].finish_reason == "stop"


def test_a_prompt_of_one_token_and_an_output_of_one_token() -> None:
    for k, (executor, depth) in [(0, RUNS[0]), (3, RUNS[1]), (3, RUNS[4])]:
        config = TinyConfig(draft_tokens=k, executor=executor, depth=depth)
        requests = [
            tiny_request(0, [5], SamplingParams(max_tokens=1)),
            tiny_request(1, [9], SamplingParams(max_tokens=6)),
        ]
        serve(tiny_engine(config), requests)
        assert requests[0].output_ids == reference((5,), None, 1, 96)
        assert requests[1].output_ids == reference((9,), None, 6, 96)
