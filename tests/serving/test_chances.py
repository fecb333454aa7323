"""An engine's texts under rules that keep no token but their chances, with grammars and drafts.

What is compared is the distribution of the first tokens over many seeds; the chances come from the
model itself, over all beginnings that the grammar allows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
import xgrammar as xgr
from torch import Tensor

from stepweave.nodes.data import Proposal
from stepweave.nodes.ops import forcing
from stepweave.nodes.ops import proposal as proposing
from stepweave.nodes.values import TOKENIZER
from stepweave.policies.acceptance import Acceptance, Block, Rejection
from stepweave.policies.chosen import Policies
from stepweave.requests.request import SamplingParams
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import (
    VOCAB,
    Method,
    TinyConfig,
    fitted,
    tiny_engine,
    tiny_pair,
    tiny_request,
)
from stepweave.testing.models import tiny_tokenizer
from tests.policies.test_acceptance import chi_square, limit
from tests.serving.reference import compiled

GRAMMAR = GrammarSpec.from_request({"regex": "([ab]hello world){3}"})
"""After each a or b there is one text, in as many ways as it can be cut into tokens."""
PROMPT = (281, 55, 296, 130)
LENGTH, TEMPERATURE, K = 4, 1.6, 3
RULES: dict[str, Acceptance] = {"rejection": Rejection(), "block": Block()}
Beginnings = dict[tuple[int, ...], float]


@cache
def chances() -> Beginnings:
    """Of all beginnings that the grammar allows."""
    model: Any = tiny_pair(torch.float64)[0]
    found: Beginnings = {(): 1.0}
    for _ in range(LENGTH):
        ids = torch.tensor([[*PROMPT, *each] for each in found])
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        longer: Beginnings = {}
        for (before, chance), row in zip(found.items(), logits, strict=True):
            allowed = row.masked_fill(~allowed_after(before), -torch.inf)
            for token, each in enumerate((allowed / TEMPERATURE).softmax(dim=0).tolist()):
                if each:
                    longer[(*before, token)] = chance * each
        found = longer
    return found


def allowed_after(tokens: tuple[int, ...]) -> Tensor:
    """`[V]`, by the grammar library itself."""
    matcher, mask = xgr.GrammarMatcher(compiled(GRAMMAR)), xgr.allocate_token_bitmask(1, VOCAB)
    for token in tokens:
        assert matcher.accept_token(token)
    matcher.fill_next_token_bitmask(mask)
    bits = mask[0, :, None] >> torch.arange(32, dtype=torch.int32) & 1
    return bits.flatten()[:VOCAB].bool()


def apart(method: str, rule: str, count: int) -> tuple[float, float]:
    """Chi-square of so many texts, as a part of what about 1 in 10 000 exceeds; the part of the
    drafts that was kept.
    """
    config = TinyConfig(
        draft_tokens=K,
        method=cast(Method, method),
        structured=True,
        policies=Policies(acceptance=RULES[rule]),
        max_rows=64,
        num_blocks=800,
        token_budget=512,
    )
    engine = tiny_engine(
        config,
        settings={"nodes.jump_forward.after": "bitmask"},
        resources={TOKENIZER: tiny_tokenizer(VOCAB)},
    )
    drafted = accepted = 0
    beginnings = list(chances())
    counts = dict.fromkeys(beginnings, 0)
    for start in range(0, count, 100):
        table = engine.new_table()
        requests = [
            tiny_request(
                uid,
                PROMPT,
                SamplingParams(
                    max_tokens=LENGTH,
                    temperature=TEMPERATURE,
                    seed=start + uid,
                    structured_outputs=GRAMMAR,
                ),
            )
            for uid in range(min(100, count - start))
        ]
        table.submit_all([fitted(engine, each) for each in requests])
        engine.run(table)
        for each in requests:
            assert each.error is None
            counts[tuple(each.output_ids)] += 1
            drafted, accepted = drafted + each.drafted, accepted + each.accepted
    expected = count * torch.tensor(list(chances().values()), dtype=torch.float64)
    cells = int((expected >= 8).sum()) + 1
    found = chi_square(torch.tensor(list(counts.values())), expected)
    return found / limit(cells), accepted / drafted


@pytest.mark.nightly
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_with_forced_drafts_texts_have_the_chances_of_the_model(method: str, rule: str) -> None:
    found, kept = apart(method, rule, 8000)
    assert 0.1 < kept < 0.9, "drafts are kept and refused"
    assert found < 1


@pytest.mark.nightly
@pytest.mark.parametrize("rule", RULES)
def test_a_forced_draft_with_a_chance_of_its_own_would_show(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = forcing.with_forced

    def with_forced(*given: Any, **how: Any) -> Proposal:
        found = right(*given, **how)
        even = torch.full((*found.tokens.shape, VOCAB), VOCAB**-1.0).log()
        return replace(found, log_probs=even)

    monkeypatch.setattr(proposing, "with_forced", with_forced)
    assert apart("mtp", rule, 1000)[0] > 1.5
