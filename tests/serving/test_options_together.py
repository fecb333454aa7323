"""Forks, and tokens that grammars force, with drafters: the reference's tokens at every depth.

Log-probabilities are the reference's too, and as many drafts are offered and kept at each depth.
That an option has an effect is a part of each test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepweave.nodes.values import TOKENIZER
from stepweave.requests.request import SamplingParams
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import VOCAB
from stepweave.testing.models import tiny_tokenizer
from tests.serving.matrix import (
    DEPTHS,
    GRAMMARS,
    SCHEMA,
    Cell,
    CellRequest,
    Outcome,
    plainly,
    prompts,
    run,
)
from tests.serving.test_matrix import check_logprobs, counts

JUMP: dict[str, Any] = {"nodes.jump_forward.after": "bitmask"}


def served(
    cell: Cell, asked: Sequence[CellRequest], settings: dict[str, Any] | None = None
) -> list[Outcome]:
    """At each depth, with the tokens and log-probabilities of the reference."""
    found = []
    for depth in DEPTHS:
        outcome = run(
            cell,
            asked,
            depth=depth,
            executor="serial" if depth == 1 else "threads",
            settings=settings,
            resources={TOKENIZER: tiny_tokenizer(VOCAB)} if settings else None,
        )
        for request, each in zip(outcome.requests, asked, strict=True):
            expected, wanted = plainly(each), each.params.logprobs
            assert request.error is None
            assert request.output_ids == expected.tokens
            check_logprobs(request.logprobs, wanted, expected.tokens, expected.log_probs)
        found.append(outcome)
    assert counts(found[0]) == counts(found[1]) == counts(found[2])
    return found


WIDE = GrammarSpec.from_request({"regex": "[^a-m]{4,60}"})
"""What a drafter that knows no grammar may well guess right."""
GRAMMARS_OF: dict[str, list[GrammarSpec | None]] = {
    **GRAMMARS,
    "wide": [WIDE],
    "mixed": [None, WIDE, SCHEMA],
}


def requests(cell: Cell, setting: SamplingParams) -> list[CellRequest]:
    """One for each prompt, each with a seed of its own and the next grammar."""
    grammars = (GRAMMARS_OF[cell.grammar] * 4)[:4]
    return [
        CellRequest(prompt, replace(setting, seed=seed, structured_outputs=grammars[seed]))
        for seed, prompt in enumerate(prompts(cell.situation))
    ]


def accepted(outcome: Outcome) -> int:
    return sum(kept for _, kept in counts(outcome))


def check_grammars_matter(asked: Sequence[CellRequest]) -> None:
    for each in asked:
        free = replace(each, params=replace(each.params, structured_outputs=None))
        assert (plainly(free).tokens != plainly(each).tokens) == (each.params.grammar is not None)


SEEDED = SamplingParams(max_tokens=16, temperature=0.9, logprobs=2)
REPEATING = replace(SEEDED, max_tokens=26, temperature=0.5, repetition_penalty=0.25)
"""Texts repeat themselves, so that there is something to look up."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("grammar", ["no grammar", "wide", "mixed"])
@pytest.mark.parametrize("method", ["eagle3 tree", "mtp grown", "medusa tree", "medusa", "suffix"])
def test_completions_of_one_prompt_are_those_of_the_reference(method: str, grammar: str) -> None:
    cell = Cell(1, method, grammar, "", "forks")
    asked = requests(cell, REPEATING if method == "suffix" else SEEDED)
    found = served(cell, asked)
    assert [each.forked_tokens for each in found] == [3 * 10] * 3, "all but the prompt's last"
    assert len({str(each.output_ids) for each in found[0].requests}) == 4, "seeds differ"
    assert accepted(found[0]) > 0
    check_grammars_matter(asked)


SAMPLING = {
    "greedy": SamplingParams(max_tokens=16, logprobs=2),
    "seeded": SamplingParams(max_tokens=16, temperature=0.9, top_k=40, logprobs=1),
    "penalties": SamplingParams(
        max_tokens=16, repetition_penalty=1.3, frequency_penalty=0.4, logprobs=0
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("grammar", ["schema", "structural tag", "mixed"])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "mtp modules", "medusa"])
def test_forced_tokens_are_drafted_in_place_of_those_of_a_head(
    method: str, grammar: str, sampling: str
) -> None:
    cell = Cell(1, method, grammar, "", "chunked prefill")
    asked = requests(cell, SAMPLING[sampling])
    found = served(cell, asked, JUMP)
    without = run(cell, asked, depth=1, executor="serial", checked=False)
    assert accepted(found[0]) > accepted(without), "those that are forced are kept"
    check_grammars_matter(asked)
