"""What `sample` does with drafts that were drawn, and that a grammar then cuts."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from stepweave.nodes.data import Edits, Mask, SampleRows
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.windows import MissingMask, draw
from stepweave.policies.acceptance import Coupled
from stepweave.policies.policy import Policy
from stepweave.policies.registry import policy
from stepweave.sampling.noise import Purpose, gumbel
from stepweave.sampling.windows import Verified, Windows
from stepweave.structured.bitmask import row_allowing

VOCAB = 8


def sample_rows(drafts: Tensor, *, structured: bool, temperature: float = 1.0) -> SampleRows:
    rows, k = drafts.shape
    one = torch.ones(rows, dtype=torch.int64)
    real = torch.ones(rows, dtype=torch.float64)
    return SampleRows(
        batch_index=torch.arange(rows),
        request_slot=torch.arange(rows),
        window_start=one,
        first=one,
        drafts=drafts,
        valid=one * k,
        forced=None,
        draft_limit=one * k,
        logit_index=torch.arange(rows * (k + 1)).view(rows, k + 1),
        seeds=torch.arange(rows) + 77,
        prompt=one,
        top_k=0 * one,
        temperature=temperature * real,
        top_p=real,
        min_p=0 * real,
        tags=torch.stack([one, one], dim=1),
        edits=Edits(),
        draft_width=k,
        longest=3,
        greedy=False,
        structured=structured,
        logprobs=-1,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [10_000, pytest.param(100_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_what_a_grammar_cuts_out_of_drawn_drafts_leaves_the_distribution_as_it_is(
    rule: str, rows: int
) -> None:
    generator = torch.Generator().manual_seed(4)
    target = torch.randn(2, VOCAB, generator=generator, dtype=torch.float64)
    q = torch.randn(VOCAB, generator=generator, dtype=torch.float64).log_softmax(dim=-1)
    seeds = torch.arange(rows) + 77
    noise = gumbel(seeds, torch.ones(rows, dtype=torch.int64), Purpose.DRAFT, VOCAB)
    drafts = (q + noise).argmax(dim=-1)[:, None]
    allowed = [0, 2, 3, 7]
    bits = torch.from_numpy(
        np.stack([row_allowing(allowed, VOCAB), row_allowing(range(VOCAB), VOCAB)])
    )
    passes = torch.isin(drafts[:, 0], torch.tensor(allowed))
    mask = Mask(bits.repeat(rows, 1), passes.long())
    drawn = rule == "rejection"
    sampled = draw(
        policy("acceptance", rule),
        sample_rows(drafts, structured=True),
        target.expand(rows, 2, VOCAB),
        mask,
        History(rows, 4),
        q.expand(rows, 1, VOCAB) if drawn else None,
    )
    wanted = target[0].clone()
    wanted[[token for token in range(VOCAB) if token not in allowed]] = -torch.inf
    expected = wanted.softmax(dim=-1)[allowed] * rows
    found = torch.bincount(sampled.tokens[:, 0], minlength=VOCAB)
    assert int(found[allowed].sum()) == rows
    # 21.1 is the 0.9999 quantile of chi-square with 3 degrees of freedom.
    assert float(((found[allowed] - expected) ** 2 / expected).sum()) < 21.1
    assert torch.equal(sampled.drafted, passes.long())  # what the grammar cut is not counted
    kept = sampled.counts == 2
    assert not (kept & ~passes).any()
    assert 0 < int(kept.sum()) < int(passes.sum())
    after = torch.bincount(sampled.tokens[kept, 1], minlength=VOCAB)
    expected = target[1].softmax(dim=-1) * kept.sum()
    # 29.9: with 7 degrees of freedom.
    assert float(((after - expected) ** 2 / expected).sum()) < 29.9


def test_a_structured_row_without_its_mask_is_not_sampled() -> None:
    rows = sample_rows(torch.zeros(2, 1, dtype=torch.int64), structured=True)
    logits = torch.zeros(2, 2, VOCAB)
    with pytest.raises(MissingMask):
        draw(Coupled(), rows, logits, None, History(2, 4))
    one = Mask(torch.full((2, 1), -1, dtype=torch.int32), torch.ones(1, dtype=torch.int64))
    with pytest.raises(MissingMask):
        draw(Coupled(), rows, logits, one, History(2, 4))


class Own(Policy):
    """A rule of another package: `exact` or not, by an option."""

    exact: bool
    compares: ClassVar[bool] = False
    couples: ClassVar[bool] = True

    def verify(self, windows: Windows) -> Verified:
        raise NotImplementedError("asked")


@pytest.mark.parametrize("exact", [True, False])
def test_windows_are_verified_straight_from_the_logits_where_the_rule_says_it_is_exact(
    exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides is what the rule says of itself, not which rule it is."""
    straight = Verified(torch.tensor([[5, -1]]), torch.tensor([1]))
    monkeypatch.setattr("stepweave.nodes.ops.windows.runs_on", lambda logits: True)
    monkeypatch.setattr("stepweave.nodes.ops.windows._verified_by_kernels", lambda *given: straight)
    own = Own(exact=exact)
    rows = replace(sample_rows(torch.zeros(1, 1, dtype=torch.int64), structured=False), greedy=True)
    logits = torch.zeros(1, 2, VOCAB)
    if exact:
        assert draw(own, rows, logits, None, History(1, 4)).tokens is straight.tokens
    else:
        with pytest.raises(NotImplementedError, match="asked"):
            draw(own, rows, logits, None, History(1, 4))
