"""draft_mask: what may follow the newest token, and drafts that are chosen among that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from stepweave.nodes.d2h_tokens import d2h_tokens
from stepweave.nodes.data import DraftMask, HostTokens, Mask, SampleRows
from stepweave.nodes.draft_mask import fill, upload
from stepweave.nodes.ops.draft_masks import DraftMaskBuffer, permitted
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.host_copies import new_tokens
from stepweave.nodes.ops.masks import MatcherTable
from stepweave.nodes.ops.proposal import at_once
from stepweave.nodes.ops.windows import draw
from stepweave.policies.registry import policy
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.sampling.lookup import propose as look_up
from stepweave.structured.bitmask import ALL_ALLOWED, row_allowing, words
from stepweave.structured.grammar import MatcherFailure
from stepweave.testing.engines import EOS, VOCAB
from tests.incidents.engines import (
    LETTERS,
    allowed,
    decoding,
    greedy,
    matchers_for,
    structured,
    token,
)
from tests.nodes.steps import SIZES, sampled_of, some
from tests.nodes.test_sample import VOCAB as FEW
from tests.nodes.test_sample import sample_rows
from tests.policies.test_acceptance import chi_square, limit

CPU = torch.device("cpu")


def told(*rows: list[int]) -> HostTokens:
    return some(d2h_tokens(sampled=sampled_of(list(rows)), host_tokens=new_tokens(SIZES)))


def filled(rows: tuple[ScheduledRow, ...], host: HostTokens, table: MatcherTable) -> DraftMask:
    buffer = DraftMaskBuffer(4, VOCAB)
    buffer.bits.fill_(0x5A5A)
    batch = StepBatch(4, rows)
    found = some(fill(batch=batch, matchers=table, host_tokens=host, masks=buffer))
    return some(upload(filled=found, device=CPU))


def test_the_mask_is_that_after_the_newest_token_and_matchers_stay_where_they_are() -> None:
    asked, plain, a = structured(0, LETTERS), greedy(2)[1], token("a")
    table = matchers_for(asked)
    for _ in range(2):
        found = filled((decoding(asked), decoding(plain)), told([a, a], [5]), table)
        [line] = found.bits.numpy()
        assert EOS in allowed(line)
        assert a in allowed(line)
        assert len(allowed(line)) < VOCAB
        assert some(found.lines).tolist() == [0, -1], "the second has no grammar"
    table.matchers[0].advance([a])
    ended = filled((decoding(asked),), told([a, EOS]), table)
    assert allowed(ended.bits.numpy()[0]) == {EOS}
    assert ended.lines is None, "every row has a grammar"
    table.matchers[0].advance([a])


def test_what_is_not_allowed_or_comes_after_a_failure_leaves_a_row_open() -> None:
    asked, a = structured(0, LETTERS), token("a")
    table = matchers_for(asked)
    open_row = [[ALL_ALLOWED] * words(VOCAB)]
    assert filled((decoding(asked),), told([3]), table).bits.tolist() == open_row, "it has ended"
    table.matchers[0].advance([a])

    class Broken:
        def accept(self, token: int) -> bool:
            raise MatcherFailure("broken")

    table.matchers[0] = Broken()  # type: ignore[assignment]
    assert filled((decoding(asked),), told([a]), table).bits.tolist() == open_row
    assert table.failures == {0: "broken"}
    assert filled((decoding(asked),), told([a]), table).bits.tolist() == open_row


def test_there_is_no_mask_where_nobody_has_a_grammar_or_nobody_is_drafted_for() -> None:
    [plain], asked = greedy(1), structured(0, LETTERS)
    buffer, table = DraftMaskBuffer(4, VOCAB), matchers_for(asked)
    without = StepBatch(4, (decoding(plain),))
    assert fill(batch=without, matchers=table, host_tokens=told([5]), masks=buffer) is None
    asked.window = 1
    undrafted = StepBatch(4, (decoding(asked),))
    assert fill(batch=undrafted, matchers=table, host_tokens=told([5]), masks=buffer) is None
    assert d2h_tokens(sampled=None, host_tokens=new_tokens(SIZES)) is None
    assert upload(filled=None, device=CPU) is None


def test_a_drafter_that_can_say_nothing_allowed_says_what_it_would_have_said() -> None:
    logits = torch.tensor([[3.0, 1.0, -torch.inf, 2.0, 9.0], [3.0, 1.0, -torch.inf, 2.0, 9.0]])
    bits = torch.from_numpy(np.stack([row_allowing([1, 3], 4), row_allowing([2], 4)]))
    every = DraftMask(bits, None)
    assert permitted(logits, every, 4).argmax(dim=1).tolist() == [3, 0]
    assert permitted(logits, every, 4)[0].exp().count_nonzero() == 2
    one = permitted(logits, DraftMask(bits, torch.tensor([-1, 0])), 4)
    assert torch.equal(one[0], logits[0, :4]), "its row has no grammar"
    assert torch.equal(one[1], permitted(logits, every, 4)[0])
    assert torch.equal(permitted(logits, None, 4), logits[:, :4])


def test_a_look_up_takes_the_next_place_whose_token_is_allowed() -> None:
    history = torch.tensor([[7, 8, 9, 4, 5, 8, 9, 6, 9, 2, 7, 8, 9]] * 4)
    length = torch.tensor([13] * 4)
    every = (range(10), [4, 6], [2, 6], [5])
    bits = torch.from_numpy(np.stack([row_allowing(tokens, 10) for tokens in every]))
    tokens, valid = look_up(history, length, 2, 3, 1, bits)
    assert tokens.tolist() == [[4, 5], [4, 5], [6, 9], [-1, -1]]
    assert valid.tolist() == [2, 2, 2, 0]
    tokens, valid = look_up(history, length, 2, 3, 1, bits[2:], torch.tensor([-1, 1, 0, -1]))
    assert tokens.tolist() == [[4, 5], [-1, -1], [6, 9], [4, 5]]
    assert valid.tolist() == [2, 0, 2, 2]


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        ("rejection", 4_000),
        *(
            pytest.param(rule, 100_000, marks=pytest.mark.nightly)
            for rule in ("coupled", "rejection", "block")
        ),
    ],
)
def test_drafts_that_are_chosen_among_allowed_tokens_leave_the_distribution_as_it_is(
    rule: str, rows: int
) -> None:
    """And more of them are kept: 1 − TV of both distributions, masked, under rejection."""
    generator = torch.Generator().manual_seed(4)
    p, q = torch.randn(2, FEW, generator=generator, dtype=torch.float64)
    some_allowed = [0, 2, 3, 7]
    bits = torch.tensor(row_allowing(some_allowed, FEW)).expand(rows, -1)
    acceptance = policy("acceptance", rule)

    def kept(masked: bool) -> tuple[Tensor, float]:
        shape: SampleRows = sample_rows(torch.zeros(rows, 1, dtype=torch.int64), structured=True)
        logits = permitted(q.expand(rows, FEW), DraftMask(bits, None) if masked else None, FEW)
        proposal = at_once(acceptance, FEW, shape, [logits], shape.window_start - 1)
        allowed_draft = torch.isin(proposal.tokens[:, 0], torch.tensor(some_allowed))
        assert not masked or bool(allowed_draft.all())
        sampled = draw(
            acceptance,
            replace(shape, drafts=proposal.tokens),
            p.expand(rows, 2, FEW),
            Mask(bits.repeat_interleave(2, dim=0), allowed_draft.long()),
            History(rows, 4),
            proposal.log_probs,
        )
        return sampled.tokens[:, 0], float((sampled.counts == 2).double().mean())

    first, share = kept(True)
    closed = torch.full_like(p, -torch.inf)
    closed[some_allowed] = 0.0
    wanted = (p + closed).softmax(dim=-1)
    assert chi_square(torch.bincount(first, minlength=FEW), wanted * rows) < limit(4)
    assert share > kept(False)[1] + 0.1
    if rule != "coupled":
        overlap = torch.minimum(wanted, (q + closed).softmax(dim=-1)).sum()
        assert share == pytest.approx(float(overlap), abs=0.03)
