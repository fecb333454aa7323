"""bitmask: masks of each place of each window, and what closes a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from stepweave.nodes.bitmask import fill, upload
from stepweave.nodes.data import FilledMask, HostDrafts
from stepweave.nodes.ops.host_copies import new_drafts
from stepweave.nodes.ops.masks import MaskBuffer, MatcherTable, uploaded
from stepweave.nodes.sizes import Sizes
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.structured.bitmask import words
from stepweave.testing.engines import EOS, VOCAB
from tests.incidents.engines import (
    LETTERS,
    allowed,
    decoding,
    greedy,
    matchers_for,
    pending,
    structured,
    token,
)
from tests.nodes.steps import some

EVERY = set(range(VOCAB))
CPU = torch.device("cpu")


def filled(
    rows: tuple[ScheduledRow, ...], drafts: HostDrafts | None, table: MatcherTable, **more: Any
) -> FilledMask:
    batch = StepBatch(4, rows, **more)
    buffer = MaskBuffer(4, 3, VOCAB)
    buffer.bits.fill_(0x5A5A)  # of the step that had this slot before
    return some(fill(batch=batch, matchers=table, host_drafts=drafts, mask_host=buffer))


def places(filled_mask: FilledMask, row: int) -> list[set[int]]:
    """What each place of a row's window may hold."""
    mask, width = uploaded(filled_mask, CPU), len(filled_mask.bits)
    if mask.lines is None:
        width //= filled_mask.rows
        lines = list(range(row * width, (row + 1) * width))
    else:
        lines = mask.lines[row].tolist()
    return [EVERY if line < 0 else allowed(mask.bits.numpy()[line]) for line in lines]


def valid(mask: FilledMask) -> list[int]:
    found: list[int] = mask.numbers[: mask.rows].tolist()
    return found


def test_a_step_without_grammars_has_no_mask() -> None:
    [plain] = greedy(1)
    batch = StepBatch(4, (decoding(plain),))
    buffer = MaskBuffer(4, 3, VOCAB)
    matchers = MatcherTable()
    assert fill(batch=batch, matchers=matchers, host_drafts=None, mask_host=buffer) is None
    assert fill(batch=StepBatch(4), matchers=matchers, host_drafts=None, mask_host=buffer) is None
    assert upload(mask_host=None, device=CPU) is None


def test_each_place_allows_what_may_follow_the_drafts_before_it() -> None:
    asked = structured(0, LETTERS)
    a = token("a")
    mask = filled((decoding(asked),), pending([a, a]), matchers_for(asked))
    first, second, third = places(mask, 0)
    assert a in first
    assert EOS not in first, "one letter at least"
    assert second == third == first | {EOS}
    assert valid(mask) == [2]


def test_a_draft_that_the_grammar_forbids_ends_the_window() -> None:
    asked = structured(0, LETTERS)
    a, wrong = token("a"), 3
    mask = filled((decoding(asked),), pending([a, wrong]), matchers_for(asked))
    assert wrong not in places(mask, 0)[1]
    assert valid(mask) == [1]
    assert places(mask, 0)[2] == {EOS}, "what is never sampled allows nothing but a stop"


@pytest.mark.parametrize("draft", [-1, VOCAB, VOCAB + 5])
def test_a_draft_outside_the_vocabulary_ends_the_window(draft: int) -> None:
    asked = structured(0, LETTERS)
    mask = filled((decoding(asked),), pending([draft, token("a")]), matchers_for(asked))
    assert valid(mask) == [0]


def test_a_matcher_stands_where_it_stood_before_the_masks_were_filled() -> None:
    asked, a = structured(0, LETTERS), token("a")
    table = matchers_for(asked)
    once = places(filled((decoding(asked),), pending([a, a]), table), 0)
    again = places(filled((decoding(asked),), pending([a, a]), table), 0)
    assert once == again
    table.matchers[0].advance([a])
    assert EOS in places(filled((decoding(asked),), pending([a, a]), table), 0)[0]


def test_rows_without_a_grammar_allow_everything_beside_those_that_have_one() -> None:
    asked, [plain] = structured(0, LETTERS), greedy(1)
    rows = (decoding(asked, row=0), decoding(plain, row=1)._replace(request=free(plain)))
    table = matchers_for(asked)
    mask = filled(rows, pending([token("a"), token("a")]), table)
    assert places(mask, 1) == [EVERY] * 3
    assert valid(mask) == [2, 2]
    assert table.failures == {}
    assert list(table.matchers) == [0]


def free(plain: Any) -> Any:
    plain.arrive()
    return replace(plain.spec, uid=9, window=3)


def test_a_resumed_row_is_not_masked_its_token_is_known() -> None:
    first, second = structured(0, LETTERS), structured(1, LETTERS)
    resumed = decoding(second, row=1)._replace(start=0, tokens=(5, 6), forced=7)
    mask = filled((decoding(first), resumed), pending([3, 3]), matchers_for(first, second))
    assert places(mask, 1) == [EVERY] * 3


def test_drafts_of_another_generation_fail_closed() -> None:
    asked, a = structured(0, LETTERS), token("a")
    table = matchers_for(asked)
    drafts = pending([a, a], generation=1)
    mask = filled((decoding(asked, generation=2),), drafts, table)
    assert table.failures == {0: "request slot 0 holds drafts of generation 1, not 2"}
    assert valid(mask) == [0], "none of those drafts is considered"
    assert a in places(mask, 0)[0]


def test_a_grammar_that_is_not_there_closes_its_row_and_no_other() -> None:
    asked, other = structured(0, LETTERS), structured(1, LETTERS)
    table = matchers_for(other)
    a = token("a")
    drafts = new_drafts(Sizes(max_rows=4, draft_tokens=2))
    for row in (0, 1):
        drafts.tokens[row], drafts.tags[row] = torch.tensor([a, a]), torch.tensor([1, 3])
    mask = filled((decoding(asked, row=0), decoding(other, row=1)), drafts, table)
    assert places(mask, 0) == [set()] * 3
    assert valid(mask) == [0, 2]
    assert list(table.failures) == [0]
    assert a in places(mask, 1)[0]


def test_before_a_row_decodes_there_are_no_drafts_to_check() -> None:
    asked, a = structured(0, LETTERS), token("a")
    table = matchers_for(asked)
    prompt = decoding(asked, generation=2)._replace(start=0, tokens=(5, 6, 7))
    stale = pending([a, a], generation=1)
    mask = filled((prompt,), stale, table)
    assert table.failures == {}, "drafts of who had the row before are not its own"
    assert (len(mask.bits), valid(mask)) == (1, [0])
    assert a in places(mask, 0)[0]


def test_without_drafts_on_the_host_a_window_is_its_first_place() -> None:
    asked = structured(0, LETTERS, window=1)
    mask = filled((decoding(asked),), None, matchers_for(asked))
    assert (len(mask.bits), valid(mask)) == (1, [0])


def test_lines_of_no_request_allow_everything() -> None:
    asked, a = structured(0, LETTERS), token("a")
    mask = filled((decoding(asked),), pending([a, a]), matchers_for(asked), padding=2)
    assert places(mask, 1) == places(mask, 2) == [EVERY] * 3
    assert valid(mask) == [2, 2, 2]


def test_the_upload_is_a_copy() -> None:
    asked, a = structured(0, LETTERS), token("a")
    mask = filled((decoding(asked),), pending([a, a]), matchers_for(asked))
    there = some(upload(mask_host=mask, device=CPU))
    assert torch.equal(there.bits, mask.bits)
    assert there.lines is None, "every row has a mask, in its order"
    mask.bits.zero_()
    mask.numbers.zero_()
    assert there.bits.any()
    assert there.valid.tolist() == [2]


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("asked", [1, 3, 64, 65, 128])
def test_what_is_uploaded_is_as_long_as_the_rows_that_have_a_grammar(
    asked: int, rounded: bool
) -> None:
    """In few sizes where a step is rounded, so that what was captured of it comes up again."""
    grammars = [structured(uid, LETTERS) for uid in range(asked)]
    [plain] = greedy(1)
    rows = [decoding(each, row=place) for place, each in enumerate(grammars)]
    others = decoding(plain)._replace(request=free(plain))
    batch = StepBatch(
        4,
        (*(others._replace(request_slot=row) for row in range(asked, 128)), *rows),
        padding=0 if rounded else None,
    )
    table, buffer = matchers_for(grammars[0]), MaskBuffer(128, 3, VOCAB)
    for each in grammars:
        table.grammars.enter(each.uid, table.grammars.of(0))
    drafts = new_drafts(Sizes(max_rows=128, draft_tokens=2))
    drafts.tokens[:], drafts.tags[:] = token("a"), torch.tensor([1, 3])
    mask = some(fill(batch=batch, matchers=table, host_drafts=drafts, mask_host=buffer))
    assert table.failures == {}
    lines = 3 * ((16 if asked <= 16 else 128) if rounded else asked)
    assert tuple(mask.bits.shape) == (lines, words(VOCAB))
    assert mask.bits.nbytes == lines * 4 * words(VOCAB)
    there = uploaded(mask, CPU)
    if asked == 128 and not rounded:
        assert there.lines is None
        assert len(mask.numbers) == 128
        return
    assert there.lines is not None
    assert there.lines[: 128 - asked].eq(-1).all()
    assert mask.numbers.nbytes == 8 * 128 * (1 + 3)
    assert there.lines[128 - asked :].flatten().tolist() == list(range(3 * asked))
    first, second, third = places(mask, 127)
    assert second == third == first | {EOS}
