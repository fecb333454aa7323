"""Rows laid out anew: every token is there, what is added changes nothing, and layouts are few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from stepweave.graph.pieces import Between
from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.paged_cache import LayerShape, PagedCache
from stepweave.models.row_layout import FEW, laid_out, rounded_columns, rounded_rows
from stepweave.models.tree_rows import TreeRows
from stepweave.testing.models import tiny_eagle, tiny_model

BLOCK = 16
LARGEST = 512
R = TypeVar("R")


def size(count: int) -> int | None:
    rounded = -(-count // 8) * 8
    return rounded if rounded <= LARGEST else None


def cache(blocks: int = 400) -> PagedCache:
    return PagedCache((LayerShape(1, 4, 4),), blocks, BLOCK, torch.float32, "cpu")


def drawn(
    draw: Random, kept: PagedCache, rows: int, window: int, reach: int = 200
) -> AttentionBatch:
    """Rows that decode, some tokens of them masked, and then prompts."""
    prompts = draw.randrange(3)
    lens = [window] * rows + [draw.randrange(1, reach // 2) for _ in range(prompts)]
    starts = [draw.randrange(1, reach // 2) for _ in range(rows)] + [0] * prompts
    free = list(range(1, kept.num_blocks))
    draw.shuffle(free)
    most = [-(-(start + length) // BLOCK) for start, length in zip(starts, lens, strict=True)]
    tables = torch.zeros(len(lens), max(most) + draw.randrange(3), dtype=torch.int64)
    positions, slots = [], []
    for row, (start, length, blocks) in enumerate(zip(starts, lens, most, strict=True)):
        for block in range(blocks):
            tables[row, block] = free.pop()
        for at in range(start, start + length):
            masked = row < rows and draw.random() < 0.2
            positions.append(-1 if masked else at)
            slots.append(0 if masked else int(tables[row, at // BLOCK]) * BLOCK + at % BLOCK)
    return AttentionBatch(
        tuple(lens),
        tables,
        torch.tensor(positions),
        torch.tensor(slots),
        kept,
        blocks=tuple(most) if draw.random() < 0.8 else None,
    )


def rows_of(lens: Sequence[int]) -> list[slice]:
    ends = [*accumulate(lens)]
    return [slice(end - length, end) for end, length in zip(ends, lens, strict=True)]


@pytest.mark.parametrize("seed", range(40))
def test_every_token_is_in_a_row_of_its_own_blocks_and_the_others_are_masked(seed: int) -> None:
    draw = Random(seed)
    batch = drawn(draw, cache(), draw.randrange(1, 18), draw.choice((1, 2, 4, 8, 9)))
    laid = laid_out(batch, size)
    assert laid is not None
    new, places = laid.batch, laid.places.tolist()
    assert sorted(set(places)) == places, "each token once, in order"
    assert torch.equal(laid.order[laid.places], torch.arange(len(batch.slots)))
    for name in ("positions", "slots"):
        assert torch.equal(getattr(new, name)[laid.places], getattr(batch, name))
    rest = torch.ones(len(new.slots), dtype=torch.bool).index_fill_(0, laid.places, False)
    assert (new.positions[rest] == -1).all(), "nobody reads it"
    assert (new.slots[rest] == 0).all(), "and it is written where nobody looks"
    old_rows, new_rows = rows_of(batch.query_lens), rows_of(new.query_lens)
    row_at = {
        token: row for row, where in enumerate(old_rows) for token in range(*where.indices(999))
    }
    for row, where in enumerate(new_rows):
        here = [token for token, place in enumerate(places) if where.start <= place < where.stop]
        blocks = new.block_tables[row]
        assert new.blocks is not None
        if not here:
            assert not blocks.any(), "a row that is added has no blocks"
            continue
        [old] = {row_at[token] for token in here}
        assert here == [*range(*old_rows[old].indices(999))]
        there = batch.block_tables[old]
        known = len(there) if batch.blocks is None else batch.blocks[old]
        assert new.blocks[row] >= known
        assert torch.equal(blocks[:known], there[:known])
    assert new.masked


def test_few_tokens_keep_their_number_and_many_are_rounded_up() -> None:
    kept = cache()

    def lens(*given: int) -> tuple[int, ...]:
        count = sum(given)
        batch = AttentionBatch(
            given,
            torch.ones(len(given), 2, dtype=torch.int64),
            torch.zeros(count, dtype=torch.int64),
            torch.zeros(count, dtype=torch.int64),
            kept,
            masked=False,
        )
        laid = laid_out(batch, size)
        assert laid is not None
        assert laid.batch.masked == (laid.batch.query_lens != given)
        return laid.batch.query_lens

    assert lens(4, 4, 4, 4) == (4, 4, 4, 4)
    assert lens(4, 4, 4) == (4, 4, 4, 4)
    assert lens(*[2] * 9, 17) == (*[2] * 12, 24)
    assert lens(FEW, FEW + 1) == (FEW, 16)
    assert lens(1, 1, 3, 30, 26, 1) == (1, 1, 3, 32, 32, 1)
    assert [*map(rounded_rows, range(1, 18))] == [1, 2, 4, 4, *[8] * 4, *[12] * 4, *[16] * 4, 24]
    assert [*map(rounded_columns, range(1, 19))] == [
        *range(1, 9),
        10,
        10,
        12,
        12,
        14,
        14,
        16,
        16,
        20,
        20,
    ]


def test_draft_trees_and_too_many_tokens_are_not_laid_out() -> None:
    draw = Random(1)
    batch = drawn(draw, cache(), 5, 4)
    marks = torch.zeros_like(batch.slots)
    assert laid_out(replace(batch, tree=TreeRows(5, marks, marks, 4)), size) is None
    assert laid_out(batch, lambda count: size(count) if count < 32 else None) is None
    assert laid_out(batch, size) is not None


def test_layouts_of_many_batches_are_few() -> None:
    """As a server has them: sixteen rows, and now and then a prompt."""
    draw, kept, given, laid = Random(2), cache(), set(), set()
    for _ in range(400):
        batch = drawn(draw, kept, draw.randrange(12, 17), 4)
        if len(batch.query_lens) - batch.query_lens.count(4) > 1:
            continue
        found = laid_out(batch, size)
        assert found is not None
        given.add((batch.query_lens, batch.blocks, batch.block_tables.shape))
        laid.add((found.batch.query_lens, found.batch.blocks))
    assert len(given) > 200
    assert len(laid) < len(given) / 3


class Rounding:
    """`Pieces` whose padding is what an earlier step left, and that does all work at once."""

    def __init__(self) -> None:
        self.keys: list[object] = []

    def size(self, count: int) -> int | None:
        return size(count)

    def run(
        self,
        key: object,
        given: Sequence[tuple[Tensor, int]],
        now: object,
        work: Callable[[Sequence[Tensor], Between], R],
        *,
        otherwise: bool = False,
    ) -> R | None:
        assert otherwise, "attention between the pieces would do"
        self.keys.append(key)
        tensors = []
        for each, count in given:
            junk = each.new_zeros(count, *each.shape[1:])
            junk[: len(each)].copy_(each)
            junk[len(each) :] = 1
            tensors.append(junk)

        def between(*_: object) -> None:
            raise AssertionError("attention is part of the work")

        return work(tensors, between)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("which", ["model", "head"])
def test_bits_are_those_of_the_pass_as_it_was_given(which: str, seed: int) -> None:
    torch.manual_seed(seed)
    draw = Random(seed)
    small = tiny_model("llama", seed, torch.float32)
    part: CausalLM | EagleHead = CausalLM.wrap(small)
    if which == "head":
        part = tiny_eagle(tiny_model("llama", seed, torch.float32), "eagle3", invariant=True)
    assert part.invariant
    forward: Any = part.forward
    caches = [part.new_cache(200, BLOCK) for _ in range(2)]
    for stored in zip(*(each.tensors for each in caches), strict=True):
        stored[0].normal_()
        stored[1].copy_(stored[0])
    for turn in range(4):
        batch = drawn(draw, caches[0], draw.choice((1, 3, 5)), draw.choice((1, 4)), 60)
        tokens = len(batch.slots)
        ids = torch.randint(0, part.vocab_size, (tokens,)).masked_fill(batch.positions < 0, -1)
        rows = torch.randint(0, tokens, (3,)) if turn % 2 or which == "model" else None
        given = (
            (ids,) if isinstance(part, CausalLM) else (ids, torch.randn(tokens, part.hidden_size))
        )
        expected = forward(*given, batch, rows)
        pieces = Rounding()
        found = forward(*given, replace(batch, cache=caches[1]), rows, pieces=pieces)
        assert len(pieces.keys) == 1
        alive = batch.positions >= 0
        for one, other, seen in zip(found, expected, _read(which, alive, rows), strict=True):
            assert one.shape == other.shape
            assert torch.equal(one[seen], other[seen])
        for one, other in zip(*(each.tensors for each in caches), strict=True):
            assert torch.equal(one[BLOCK:], other[BLOCK:]), "nothing but scratch differs"


def _read(which: str, alive: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of logits and of hidden states those of tokens that are not masked."""
    asked = alive if rows is None else alive[rows]
    return asked, alive if which == "model" else asked
