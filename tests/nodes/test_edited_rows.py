"""Rows whose requests change their logits, among others: these are not widened, nor is their text
read; and every row gets what it gets alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.nodes.data import DraftTable, Mask, Progress, SampleRows
from stepweave.nodes.ops.block_tables import BlockTables
from stepweave.nodes.ops.edits import edited, masked
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.ops.windows import draw
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.policies.registry import policy
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.sampling.stand_ins import widened
from stepweave.sampling.windows import BITS, DEPTH, PARENT
from stepweave.structured.bitmask import words
from tests.nodes.steps import LIMITS, VOCAB, chunk, decoding

ROWS, K = 16, 2
SIXTEEN = replace(LIMITS, max_rows=ROWS, token_budget=256, num_blocks=8 * (ROWS + 1) + 1)

READING: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.5},
    "counts": {"presence_penalty": 0.5, "frequency_penalty": 0.25},
    "n-grams": {"no_repeat_ngram_size": 2},
    "DRY": {"dry_multiplier": 0.5, "dry_allowed_length": 1},
    "words": {},
    "all": {"repetition_penalty": 0.75, "dry_multiplier": 2.0, "no_repeat_ngram_size": 1},
}
"""What changes logits by the text before them."""
CHANGED: dict[str, dict[str, Any]] = {
    "biases": {"logit_bias": {3: 1.5, 7: -2.0}},
    "too short": {"min_tokens": 30},
}
"""What changes them whatever the text."""


def row_of(index: int, kind: str, *, of_chunk: bool = False, **params: Any) -> ScheduledRow:
    """Row `index` of a request that asks for what `kind` names; nothing for any other name."""
    asked = {**params, **READING.get(kind, {}), **CHANGED.get(kind, {})}
    row = decoding(index, **asked)
    if of_chunk:
        row = chunk(index, [5, 6, 5], start=2, prefix=(7, 8), params=asked)
    request = replace(row.request, prompt_tokens=3 + index % 3)
    if kind in ("words", "all"):
        request = replace(request, bad_words=((9,), (5, 6), (2, 3, 4)))
    if kind == "DRY":
        request = replace(request, dry_breakers=(4,))
    if kind == "too short":
        request = replace(request, stop_tokens=(1, 2))
    return row._replace(request=request, too_short=kind == "too short")


@dataclass(frozen=True)
class Device:
    """What a step finds: by request slot, but for the logits and masks, which are by row."""

    progress: Progress
    drafts: DraftTable
    past: Tensor
    drawn_from: Tensor
    logits: Tensor
    bits: Tensor

    @staticmethod
    def at_random(seed: int, dtype: torch.dtype, *, tree: bool) -> Device:
        g = torch.Generator().manual_seed(seed)
        slots = ROWS + 1

        def integers(low: int, high: int, *shape: int) -> Tensor:
            return torch.randint(low, high, shape, generator=g)

        drafts = DraftTable.empty(slots, K, tree=tree)
        drafts.tokens[:] = integers(-1, 20, slots, K)
        drafts.tags[:] = torch.tensor([1, 3])
        if drafts.branches is not None:
            sisters = integers(0, 2, slots)
            drafts.branches[:, PARENT, 1:] = torch.stack([0 * sisters, 1 - sisters], dim=1)
            drafts.branches[:, DEPTH, 1:] = torch.stack([0 * sisters + 1, 2 - sisters], dim=1)
            drafts.branches[:, BITS, 1:] = torch.stack([0 * sisters + 3, 7 - 2 * sisters], dim=1)
        logits = torch.randn(ROWS, K + 1, VOCAB, generator=g) * 3
        logits[..., :20] += 3  # tokens that texts are made of
        return Device(
            Progress(integers(0, 20, slots), integers(6, 14, slots)),
            drafts,
            integers(0, 20, slots, LIMITS.context_length + 1).to(torch.int32),
            torch.randn(slots, K, VOCAB, generator=g).log_softmax(dim=-1),
            logits.to(dtype),
            integers(-(2**31), 2**31, ROWS, K + 1, words(VOCAB)).to(torch.int32),
        )

    def sample(
        self, rows: Sequence[ScheduledRow], padding: int | None = None
    ) -> tuple[SampleRows, History]:
        """The sampling rows of a step, and the history."""
        past = History(ROWS + 1, LIMITS.context_length)
        past.tokens[:] = self.past
        inputs = prepare_inputs(
            staging=stage(
                batch=StepBatch(7, tuple(rows), padding=padding), staging=Staging(SIXTEEN)
            ),
            progress=self.progress,
            history=past,
            tables=BlockTables(ROWS + 1, LIMITS.blocks_for(LIMITS.context_length)),
            drafts=self.drafts,
            limits=SIXTEEN,
            vocab_size=VOCAB,
        )
        assert inputs is not None
        assert inputs.sample is not None
        return inputs.sample, past

    def mask(self, structured: Sequence[int], rows: Sequence[int]) -> Mask | None:
        """Of the `rows` those that are `structured` have one, in the opposite order."""
        whose, valid = [row for row in reversed(rows) if row in structured], torch.tensor(K)
        if not whose:
            return None
        if len(whose) == len(rows) > 1:
            return Mask(self.bits[: len(rows)].flatten(0, 1), valid.expand(len(rows)))
        lines = torch.full((len(rows), K + 1), -1)
        for place, row in enumerate(whose):
            at = torch.arange(K + 1) + place * (K + 1)
            lines[rows.index(row)] = at
        return Mask(self.bits[whose].flatten(0, 1), valid.expand(len(rows)), lines)


def scores_of(
    sample: SampleRows, logits: Tensor, past: History, mask: Mask | None
) -> tuple[Tensor, bool]:
    """`[S, W, V]`: what the rows are drawn from, and whether few rows were edited apart."""
    found, stand_ins = edited(sample, logits, past, mask)
    assert (found is logits) == (stand_ins is not None or not sample.edits.wanted)
    scores = widened(found.flatten(0, 1), stand_ins)
    if mask is not None:
        lines = None if mask.lines is None else mask.lines.flatten()
        scores = masked(scores, mask.bits, lines)
    return scores.view_as(logits), stand_ins is not None


def each_as_alone(
    device: Device,
    rows: Sequence[ScheduledRow],
    padding: int | None,
    structured: Sequence[int],
    rule: str,
) -> bool:
    """Compares each row of a step with a step of its own; whether few rows were edited apart."""
    sample, past = device.sample(rows, padding)
    every = list(range(len(rows) + (padding or 0)))
    logits, mask = device.logits[: len(every)], device.mask(structured, every)
    judge = policy("acceptance", rule)
    drawn_from = None
    if rule == "rejection" and sample.branches is None:
        drawn_from = device.drawn_from.to(logits.dtype)
    with torch.inference_mode():
        scores, apart = scores_of(sample, logits, past, mask)
        found = draw(judge, sample, logits, mask, past, drawn_from)
        for index, row in enumerate(rows):
            own, own_past = device.sample([row])
            its_logits, its_mask = logits[index : index + 1], device.mask(structured, [index])
            if not row.decodes:
                its_logits, its_mask = its_logits[:, :1], of_first_places(its_mask)
            alone, _ = scores_of(own, its_logits, own_past, its_mask)
            width = alone.shape[1]
            assert torch.equal(scores[index, :width], alone[0]), index
            its = draw(judge, own, its_logits, its_mask, own_past, drawn_from)
            assert torch.equal(found.tokens[index, : int(its.counts)], its.tokens[0, : its.counts])
            assert int(found.counts[index]) == int(its.counts)
    return apart


CASES = [*range(32), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(32, 300))]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", CASES)
def test_a_row_among_others_gets_the_scores_and_tokens_that_it_gets_alone(seed: int) -> None:
    """Whatever the others ask for, with masks or not, in trees or not, rounded up or not."""
    chance = random.Random(seed)
    tree, rule = chance.random() < 0.4, chance.choice(["coupled", "coupled", "rejection"])
    dtype = chance.choice([torch.float32, torch.bfloat16, torch.float64])
    device = Device.at_random(seed, dtype, tree=tree)
    count = chance.choice([3, 9, 15, 16])
    share = chance.choice([0.1, 0.2, 0.4, 1.0])
    possible = chance.sample([*READING, *CHANGED], chance.choice([1, 2, 8]))
    kinds = [
        chance.choice(possible) if chance.random() < share else "nothing" for _ in range(count)
    ]
    random_ones: dict[str, Any] = {"temperature": 0.9, "seed": 5}
    cuts: list[dict[str, Any]] = [{}, {"top_k": 7}, {"xtc_probability": 0.5, "xtc_threshold": 0.1}]
    cut = chance.choice(cuts)
    rows = [
        row_of(
            index,
            kind,
            of_chunk=not tree and seed % 2 == 0 and index > count - 3,
            **(chance.choice([{}, random_ones, {**random_ones, **cut}])),
        )
        for index, kind in enumerate(kinds)
    ]
    padding = 16 - count if seed % 2 else None
    every = list(range(count + (padding or 0)))
    have_grammars = chance.choice([0, 0.5, 1])
    structured = [index for index in every if chance.random() < have_grammars]
    apart = each_as_alone(device, rows, padding, structured, rule)
    asking = sum(kind != "nothing" for kind in kinds)
    if padding is None:
        assert apart == (0 < asking < count) or asking == count
    else:
        reading = sum(kind in READING for kind in kinds)
        few = 0 < asking <= 2
        assert apart == (few or (asking > 0 and 0 < reading <= 2))


def of_first_places(mask: Mask | None) -> Mask | None:
    """The same for windows of their first place alone."""
    if mask is None or mask.lines is None:
        return None
    return Mask(mask.bits, mask.valid.clamp(max=0), mask.lines[:, :1])


@pytest.mark.parametrize("seed", range(4))
def test_drafts_on_the_way_to_a_place_of_a_tree_are_those_of_its_row(seed: int) -> None:
    device = Device.at_random(seed, torch.float32, tree=True)
    rows = [row_of(index, "counts" if index in (5, 7, 8) else "nothing") for index in range(9)]
    assert each_as_alone(device, rows, None, (), "coupled")
