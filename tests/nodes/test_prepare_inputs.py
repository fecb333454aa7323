"""prepare_inputs: a batch in pinned buffers, and what the device makes of it, token by token."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from stepweave.nodes.data import Inputs
from stepweave.nodes.ops.sections import on_host
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.testing.launches import Launches
from tests.nodes.ready import inputs_for
from tests.nodes.steps import (
    LIMITS,
    SIZES,
    VOCAB,
    block_tables,
    blocks_of,
    chunk,
    decoding,
    drafts_of,
    history,
    inputs_of,
    progress_of,
)

TOKEN = ("ids", "positions", "cache_slots")
NOBODY = (0, -1, 0)  # what is written here for any masked token's id, position and slot


def tokens_of(inputs: Inputs) -> list[tuple[object, ...]]:
    """One tuple for each token: the fields in `TOKEN`, and the token after it.

    A masked token may have any id of the vocabulary, and any slot of the scratch block. The token
    after is known, or it is at a place among what the step samples: sampling row and place.
    """
    width = 1 if inputs.sample is None else inputs.sample.logit_index.shape[1]
    sampled = 0 if inputs.sample is None else inputs.sample.logit_index.numel()
    found: list[tuple[object, ...]] = []
    for token, position, place, after in zip(
        *(getattr(inputs, name).tolist() for name in (*TOKEN, "next_index")), strict=True
    ):
        if position == -1:
            assert 0 <= token < VOCAB
            assert 0 <= place < LIMITS.block_size
        known = int(inputs.following[after - sampled]) if after >= sampled else None
        found.append(
            (
                *(NOBODY if position == -1 else (token, position, place)),
                divmod(after, width) if known is None else known,
            )
        )
    return found


def slot(row: int, position: int) -> int:
    return blocks_of(row)[position // 4] * 4 + position % 4


# --- by hand


def test_an_empty_batch_is_nothing_to_stage_and_nothing_to_prepare() -> None:
    assert stage(batch=StepBatch(3), staging=Staging(LIMITS)) is None
    nothing = prepare_inputs(
        staging=None,
        progress=progress_of({}),
        history=history(),
        tables=block_tables(),
        drafts=None,
        limits=LIMITS,
        vocab_size=VOCAB,
    )
    assert nothing is None


def test_a_window_is_the_last_token_and_the_drafts_and_a_chunk_is_what_the_host_gives() -> None:
    batch = StepBatch(7, (decoding(2), chunk(0, [11, 12, 13], start=4)))
    inputs = inputs_of(batch, progress_of({2: (9, 6)}), drafts_of({2: [21, 22]}))
    assert tokens_of(inputs) == [
        (9, 6, slot(2, 6), (0, 0)),
        (21, 7, slot(2, 7), (0, 1)),
        (22, 8, slot(2, 8), (0, 2)),
        (11, 4, slot(0, 4), 12),
        (12, 5, slot(0, 5), 13),
        (13, 6, slot(0, 6), (1, 0)),
    ]
    assert (inputs.query_lens, inputs.decodes) == ((3, 3), 1)
    sample = inputs.sample
    assert sample is not None
    assert sample.request_slot.tolist() == [2, 0]
    assert sample.window_start.tolist() == [6, 6], "of the last token of window and chunk"
    assert sample.first.tolist() == [9, 13]
    assert sample.drafts.tolist() == [[21, 22], [-1, -1]]
    assert sample.valid.tolist() == [2, 0]
    assert sample.logit_index.tolist() == [[0, 1, 2], [5, 5, 5]]
    assert sample.step.tolist() == [7, 7]
    assert sample.forced is None


def test_without_a_drafter_a_row_has_its_last_token_alone() -> None:
    batch = StepBatch(7, (decoding(1, window=1), decoding(3, window=1)))
    inputs = inputs_of(batch, progress_of({1: (9, 6), 3: (8, 2)}))
    assert inputs.ids.tolist() == [9, 8]
    assert inputs.positions.tolist() == [6, 2]
    assert inputs.sample is not None
    assert inputs.sample.drafts.shape == (2, 0)


@pytest.mark.parametrize("draft", [-1, VOCAB, VOCAB + 7, 1 << 40])
def test_a_draft_outside_the_vocabulary_is_none_and_ends_the_window(draft: int) -> None:
    inputs = inputs_of(
        StepBatch(7, (decoding(0),)), progress_of({0: (9, 6)}), drafts_of({0: [draft, 22]})
    )
    assert [each[:3] for each in tokens_of(inputs)][1] == NOBODY
    assert inputs.sample is not None
    assert inputs.sample.drafts.tolist() == [[-1, 22]]
    assert inputs.sample.valid.tolist() == [0], "nor is the draft behind it considered"


def test_drafts_past_the_context_are_masked_and_not_considered() -> None:
    """The token after an input must fit too: the last position of an input is 30 of 32."""
    inputs = inputs_of(
        StepBatch(7, (decoding(0),)), progress_of({0: (9, 29)}), drafts_of({0: [21, 22]})
    )
    assert inputs.positions.tolist() == [29, 30, -1]
    assert [each[:3] for each in tokens_of(inputs)] == [
        (9, 29, slot(0, 29)),
        (21, 30, slot(0, 30)),
        NOBODY,
    ]
    assert inputs.sample is not None
    assert inputs.sample.valid.tolist() == [1]


def test_a_row_that_sits_out_is_in_nothing_that_the_models_see() -> None:
    batch = StepBatch(7, (decoding(0),))
    out = drafts_of({0: [21, 22], 1: [31, 32]})
    inputs = inputs_of(batch, progress_of({0: (9, 6), 1: (8, 3)}), out)
    assert inputs.ids.tolist() == [9, 21, 22]
    assert inputs.blocks.tolist() == [list(blocks_of(0))]


def test_a_resumed_row_hands_on_the_token_that_it_has() -> None:
    batch = StepBatch(7, (decoding(1), chunk(0, [11, 12], start=4, forced=33)))
    inputs = inputs_of(batch, progress_of({1: (9, 6)}), drafts_of({}))
    assert inputs.sample is not None
    assert inputs.sample.forced is not None
    assert inputs.sample.forced.tolist() == [-1, 33]


def test_a_chunk_that_does_not_end_its_prompt_samples_nothing() -> None:
    inputs = inputs_of(
        StepBatch(7, (chunk(0, [11, 12], samples=False, following=13),)), progress_of({})
    )
    assert inputs.sample is None
    assert [each[3] for each in tokens_of(inputs)] == [12, 13]


def test_padding_is_masked_tokens_of_a_row_that_nobody_owns() -> None:
    batch = StepBatch(7, (decoding(2),), padding=2)
    inputs = inputs_of(batch, progress_of({2: (9, 6)}), drafts_of({2: [21]}))
    assert [each[:3] for each in tokens_of(inputs)] == [
        (9, 6, slot(2, 6)),
        (21, 7, slot(2, 7)),
        *[NOBODY] * 7,
    ]
    assert inputs.query_lens == (3, 3, 3)
    assert inputs.blocks[1:].count_nonzero() == 0
    sample = inputs.sample
    assert sample is not None
    assert sample.request_slot.tolist() == [2, SIZES.max_rows, SIZES.max_rows]
    assert sample.valid.tolist() == [1, 0, 0]
    assert sample.draft_limit.tolist() == [2, 0, 0], "and is offered no drafts"
    assert sample.generation.tolist() == [1, -1, -1], "so that no tag of a request matches"


def test_prompt_tokens_go_into_the_history_and_those_of_a_cached_prefix_too() -> None:
    past = history()
    rows = (decoding(2), chunk(0, [11, 12], start=4, prefix=(1, 2, 3, 4)))
    inputs_of(StepBatch(7, rows), progress_of({2: (9, 6)}), drafts_of({2: [21, -1]}), past)
    assert not past.tokens[2].any(), "those of a window are there since they were sampled"
    assert past.tokens[0, :7].tolist() == [1, 2, 3, 4, 11, 12, 0]


def test_prompt_tokens_are_asked_for_by_the_token_before_them() -> None:
    rows = (
        decoding(1),
        chunk(0, [11, 12], following=13, prompt_targets=(12, 13), params={"prompt_logprobs": 2}),
    )
    inputs = inputs_of(StepBatch(7, rows), progress_of({1: (9, 6)}), drafts_of({}))
    assert inputs.prompt is not None
    assert (inputs.prompt.token_index.tolist(), inputs.prompt.targets.tolist()) == (
        [3, 4],
        [12, 13],
    )
    assert inputs.prompt.top == 2


def test_what_a_request_asks_for_is_beside_its_row() -> None:
    asked: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.75,
        "min_p": 0.125,
        "seed": 77,
    }
    rows = (decoding(1, **asked, logprobs=3), decoding(0, generation=4))
    sample = inputs_of(StepBatch(7, rows), progress_of({}), drafts_of({})).sample
    assert sample is not None
    assert sample.temperature.tolist() == [0.5, 0]
    assert sample.top_k.tolist() == [4, 0]
    assert sample.top_p.tolist() == [0.75, 1]
    assert sample.min_p.tolist() == [0.125, 0]
    assert sample.seeds.tolist() == [77, 0]
    assert sample.generation.tolist() == [1, 4]
    assert (sample.greedy, sample.cut, sample.logprobs) == (False, True, 3)


@pytest.mark.parametrize(
    ("asked", "cuts"),
    [
        ({"temperature": 0.5, "top_k": 4}, (True, False)),
        ({"temperature": 0.5, "top_p": 0.5}, (False, True)),
        ({"temperature": 0.0, "top_k": 4, "top_p": 0.5}, (False, False)),
    ],
)
def test_what_cuts_no_row_is_known_to_the_host(
    asked: dict[str, Any], cuts: tuple[bool, bool]
) -> None:
    rows = (decoding(1, **asked), decoding(0))
    sample = inputs_of(StepBatch(7, rows), progress_of({}), drafts_of({})).sample
    assert sample is not None
    assert (sample.any_top_k, sample.any_top_p) == cuts
    assert sample.cut == any(cuts)


@pytest.mark.parametrize("padding", [None, 1])
def test_what_few_requests_ask_for_is_staged_for_those_or_where_sizes_are_rounded_for_all(
    padding: int | None,
) -> None:
    """Of what cuts tokens, unlike what changes logits, each row has an entry in any case."""
    asked: dict[str, Any] = {
        "temperature": 0.5,
        "xtc_probability": 0.25,
        "xtc_threshold": 0.125,
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 64,
        "no_repeat_ngram_size": 4,
        "frequency_penalty": 0.25,
    }
    row = decoding(1, **asked)
    row = row._replace(request=replace(row.request, dry_breakers=(7, 9)))
    batch = StepBatch(7, (row, decoding(0)), padding=padding)
    sample = inputs_of(batch, progress_of({}), drafts_of({})).sample
    assert sample is not None
    nobody = 0 if padding is None else 1
    others = 0 if padding is None else 2
    edits, xtc = sample.edits, sample.xtc
    assert xtc is not None
    assert edits.dry is not None
    assert edits.repeats is not None
    assert edits.penalties is not None
    assert xtc[0].tolist() == [0.25, 0] + [0] * nobody
    assert float(xtc[1, 0]) == 0.125
    dry_of_others = [0, 0][:others], [1.75, 1][:others]
    assert edits.dry.tolist() == [[0.5, *dry_of_others[0]], [2, *dry_of_others[1]]]
    assert edits.penalties.tolist() == [[1, 0, 0.25], *[[1, 0, 0]] * others]
    assert edits.repeats[:, :6].tolist()[0] == [4, 3, 64, 7, 9, -1]
    assert len(edits.repeats) == 1 + others
    assert set(edits.repeats[1:, 3:].flatten().tolist()) == {-1} or not others
    assert edits.repeats[1:, 0].tolist() == [0] * others
    assert edits.longest_match == 50
    assert sample.cut
    if padding is None:
        assert edits.rows is not None
        assert edits.lines is not None
        assert edits.rows.tolist() == [0]
        assert edits.lines.tolist() == [[0, 1, 2], [-1, -1, -1]]
    else:
        assert edits.rows is None, "all, in their order"


@pytest.mark.parametrize(
    ("kinds", "rounded", "expected"),
    [
        ("....", False, ((), 0)),
        ("..b.", False, ((2,), 0)),
        ("b.rb", False, ((2, 0, 3), 1)),
        ("rbbr", False, ((0, 3, 1, 2), 2)),
        ("rrrr", False, (None, 4)),
        ("bbbb", False, (None, 4)),
        ("......r.........", True, ((6, 0), 2)),
        ("......b.........", True, ((6, 0), 0)),
        ("..b...r.........", True, ((6, 2), 2)),
        ("r" + 9 * ".", True, ((0, 1), 2)),
        (".rr.b...........", True, ((1, 2, 4, 0, 3, *range(5, 16)), 2)),
        (".rr.r...........", True, (None, 16)),
        ("b.b.b...........", True, (None, 16)),
        ("r...", True, (None, 4)),
    ],
    ids=str,
)
def test_rows_that_read_their_text_come_first_and_others_fill_up_the_room(
    kinds: str, rounded: bool, expected: tuple[tuple[int, ...] | None, int]
) -> None:
    """`r`: asks for penalties, `b`: for a bias. There is room for an eighth of the rows, or all."""
    of_kind: dict[str, dict[str, Any]] = {
        "r": {"presence_penalty": 0.5},
        "b": {"logit_bias": {3: 1.0}},
        ".": {},
    }
    rows = tuple(decoding(index, **of_kind[kind]) for index, kind in enumerate(kinds))
    size = 1 << (len(rows) - 1).bit_length()
    batch = StepBatch(7, rows, padding=size - len(rows) if rounded else None)
    staging = Staging(replace(LIMITS, max_rows=16, token_budget=64, num_blocks=200))
    staged = staging.fill(batch)
    parts = on_host(staged, staging.flat.numpy())
    listed, readers = expected
    assert staged.apart == bool(listed)
    if listed is not None:
        assert parts["edited"].tolist() == [*listed]
        assert (staged.edited, staged.readers) == (len(listed), readers)
        for place, index in enumerate(listed):
            assert parts["edited_lines"][index].tolist() == [
                3 * place,
                3 * place + 1,
                3 * place + 2,
            ]
        assert int((parts["edited_lines"] >= 0).sum()) == 3 * len(listed)
    for place, token in parts["biases"].tolist():
        whose = place if listed is None else listed[place]
        assert (kinds[whose], token) == ("b", 3)
    assert len(parts["biases"]) == kinds.count("b")


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({}, 0),
        ({"no_repeat_ngram_size": 1}, 1),
        ({"no_repeat_ngram_size": 5}, 4),
        ({"dry_multiplier": 1.0}, 50),
        ({"dry_multiplier": 1.0, "dry_penalty_last_n": 0}, 0),
        ({"xtc_probability": 1.0}, 0),
    ],
)
def test_what_nobody_asks_for_is_not_there(asked: dict[str, Any], match: int) -> None:
    rows = (decoding(1, **asked), decoding(0))
    sample = inputs_of(StepBatch(7, rows), progress_of({}), drafts_of({})).sample
    assert sample is not None
    assert sample.edits.longest_match == match
    assert (sample.edits.repeats is not None) == (match > 0)
    assert (sample.edits.dry is not None) == (match == 50)
    assert sample.xtc is None, "greedy rows have no top choices to leave out"
    assert sample.edits.wanted == (match > 0)


def test_a_model_with_two_ropes_ends_short_rows_at_its_first_context() -> None:
    limits = replace(LIMITS, rope_switch=15)
    short, long = decoding(0)._replace(limit=16), decoding(1)._replace(limit=32)
    staged = stage(batch=StepBatch(7, (short, long)), staging=Staging(limits))
    inputs = prepare_inputs(
        staging=staged,
        progress=progress_of({0: (9, 13), 1: (8, 13)}),
        history=history(),
        tables=block_tables(),
        drafts=drafts_of({0: [21, 22], 1: [31, 32]}),
        limits=limits,
        vocab_size=VOCAB,
    )
    assert inputs is not None
    assert inputs.long is not None
    assert inputs.long.tolist() == [False] * 3 + [True] * 3
    assert inputs.positions.tolist() == [13, 14, -1, 13, 14, 15]
    assert inputs.sample is not None
    assert inputs.sample.valid.tolist() == [1, 2]


# --- many steps, against a plain program


def expected(
    batch: StepBatch, progress: Mapping[int, tuple[int, int]], drafts: Mapping[int, Sequence[int]]
) -> Iterator[tuple[object, ...]]:
    """The tokens of a step, one by one, from what `Inputs` promises."""
    sampling = 0
    for row in batch.rows:
        line, offered = sampling, row.request.window > 1
        sampling += row.samples
        after: list[object]
        if row.decodes:
            last, computed = progress[row.request_slot]
            window = [last, *drafts[row.request_slot], -1, -1]
            width = batch.width if batch.padding is not None else row.queries
            given = [(window[at], computed + at) for at in range(width)]
            after = [(line, at) for at in range(width)]
        else:
            given = [(token, row.start + at) for at, token in enumerate(row.tokens)]
            after = [*row.tokens[1:], (line, 0) if row.samples else row.following]
        if row.samples and not offered:
            after = [-1] * len(given)
        for (token, position), then in zip(given, after, strict=True):
            known = 0 <= token < VOCAB
            if known and position <= LIMITS.context_length - 2:
                yield token, position, slot(row.request_slot, position), then
            else:
                yield *NOBODY, then
    for _ in range((batch.padding or 0) * batch.width):
        yield *NOBODY, -1


def valid_drafts(computed: int, drafts: Sequence[int]) -> int:
    count = 0
    for at, token in enumerate(drafts, start=1):
        if not 0 <= token < VOCAB or computed + at > LIMITS.context_length - 2:
            break
        count += 1
    return count


@pytest.mark.parametrize("seed", range(60))
def test_random_steps_are_those_of_a_plain_program(seed: int) -> None:
    rnd = random.Random(seed)
    progress = {row: (rnd.randrange(VOCAB), rnd.randrange(1, 31)) for row in range(4)}
    drafts = {
        row: [rnd.choice([-1, 3, 17, 49, VOCAB, VOCAB + 3]) for _ in range(2)] for row in range(4)
    }
    order = rnd.sample(range(4), rnd.randrange(1, 5))
    decodes = rnd.randrange(len(order) + 1)
    rows = [decoding(row, window=rnd.choice([1, 3, 3])) for row in order[:decodes]]
    for row in order[decodes:]:
        tokens = [rnd.randrange(VOCAB) for _ in range(rnd.randrange(1, 6))]
        last = rnd.random() < 0.6
        rows.append(
            chunk(row, tokens, rnd.randrange(20), samples=last, following=-1 if last else 4)
        )
    padding = (
        rnd.randrange(5 - len(order)) if decodes == len(order) and rnd.random() < 0.7 else None
    )
    if padding is not None:
        # A row of a rounded step that takes no drafts has none.
        drafts |= {row.request_slot: [-1, -1] for row in rows if row.request.window == 1}
    batch = StepBatch(7, tuple(rows), padding=padding)
    inputs = inputs_of(batch, progress_of(progress), drafts_of(drafts))
    assert tokens_of(inputs) == list(expected(batch, progress, drafts))
    if inputs.sample is None:
        assert not batch.samples
        return
    wanted, starts = [], []
    for each in batch.sampling:
        computed, pending = progress[each.request_slot][1], drafts[each.request_slot]
        drafted = valid_drafts(computed, pending[: batch.width - 1])
        wanted.append(drafted if each.decodes else 0)
        starts.append(computed if each.decodes else each.start + len(each.tokens) - 1)
    assert inputs.sample.valid.tolist() == wanted + [0] * (padding or 0)
    assert inputs.sample.window_start.tolist()[: len(starts)] == starts


# --- block tables: what is new of them is uploaded, and the rest is there


def test_a_block_table_is_what_all_its_changes_make() -> None:
    tables = block_tables()
    progress, own = progress_of({0: (9, 6), 1: (8, 6)}), blocks_of(0)

    def blocks(*rows: ScheduledRow, padding: int | None = None) -> list[list[int]]:
        batch = StepBatch(7, rows, padding=padding)
        return inputs_of(batch, progress, drafts_of({}), tables=tables).blocks.tolist()

    row, other = decoding(0), decoding(1)
    assert blocks(row._replace(blocks=own[:2])) == [list(own[:2])]
    grown = row._replace(blocks=own[:4], known=2)
    assert blocks(other, grown) == [list(blocks_of(1)), [*own[:4], 0, 0, 0, 0]]
    behind = row._replace(blocks=(0, *own[1:4]), known=4, passed=(0,))
    assert blocks(behind) == [[0, *own[1:4]]]
    rounded = blocks(row._replace(blocks=(0, *own[1:5]), known=4), padding=2)
    assert rounded == [[0, *own[1:5], 0, 0, 0], [0] * 8, [0] * 8]
    assert blocks(row._replace(blocks=(33,), known=0)) == [[33]]
    assert not tables.entries[0, 1:].any(), "a new owner has nothing of the one before"
    assert not tables.entries[-1].any()
    assert not tables.entries[:, -1].any(), "the place of masked positions"


def test_a_rounded_step_uploads_as_much_whatever_is_new() -> None:
    row = decoding(0)._replace(known=8)
    sizes = [
        stage(batch=StepBatch(7, rows, padding=1), staging=Staging(LIMITS))
        for rows in ((row,), (row._replace(known=7),), (row._replace(known=6),))
    ]
    assert [size and size.changes for size in sizes] == [2, 2, 2]


# --- how much it is for a device


@pytest.mark.parametrize(
    ("rows", "most"),
    [
        ((decoding(0, window=1, most=20),), 8),
        ((decoding(0, window=1, most=34),), 11),
        ((decoding(0, most=20), decoding(1, most=20)), 13),
        ((decoding(0), decoding(1)), 16),
        ((decoding(0, most=20), chunk(1, [3, 4, 5], prefix=())), 14),
    ],
    ids=["plain", "near its end", "drafts", "drafts, near their end", "with a prompt"],
)
def test_a_step_takes_no_more_launches_than_it_did(
    rows: tuple[ScheduledRow, ...], most: int
) -> None:
    """The copy to the device is one of them; writing new blocks would be one more."""
    prepare = inputs_for(rows)
    with Launches() as counted:
        prepare()
    assert counted.total == most, counted.counts


# --- what is kept from step to step


def fields_that_change(row: ScheduledRow) -> dict[str, ScheduledRow]:
    """The row with each of its fields otherwise."""
    others: dict[str, Any] = {
        "request": row.request.__class__(9, "other", row.request.params, 4, window=2),
        "request_slot": 2,
        "generation": 5,
        "blocks": (*row.blocks[:6], 33),
        "start": 5,
        "tokens": (7, 8),
        "samples": False,
        "forced": 6,
        "following": 11,
        "prefix": (1, 2, 3),
        "limit": 20,
        "most": 27,
        "too_short": True,
        "earlier_output": (3,),
        "prompt_targets": (4, 5),
        "known": 6,
        "passed": (1,),
        "narrowed": 1,
        "withheld": 1,
        "encoded": ((0, 3, 1),),
    }
    of_prompt = {"start": 0, "tokens": (5, 6)}
    with_it: dict[str, dict[str, Any]] = {
        "start": {"tokens": (1,)},
        **dict.fromkeys(("tokens", "following", "prefix", "prompt_targets", "encoded"), of_prompt),
    }
    return {
        name: row._replace(**{**with_it.get(name, {}), name: value})
        for name, value in others.items()
    }


@pytest.mark.parametrize("padding", [None, 1])
def test_a_buffer_is_filled_alike_whatever_it_held(padding: int | None) -> None:
    request: dict[str, Any] = {"min_tokens": 8, "stop_token_ids": (3,), "temperature": 0.5}
    one, two = (decoding(row, **request)._replace(known=8) for row in (0, 1))
    one = one._replace(request=replace(one.request, stop_tokens=(3,)))
    changed = fields_that_change(two)
    assert tuple(sorted(changed)) == tuple(sorted(ScheduledRow._fields))
    staging = Staging(LIMITS)
    rows = [two, two, *(each for other in changed.values() for each in (other, two))]
    for step, row in enumerate(rows):
        whole = row.samples and not row.tokens
        batch = StepBatch(step, (one, row), padding if whole else None)
        alone = Staging(LIMITS)
        alone.flat.fill_(-77)
        staging.flat.fill_(-77)
        found, wanted = staging.fill(batch), alone.fill(batch)
        assert replace(found, flat=alone.flat) == wanted
        assert torch.equal(staging.flat, alone.flat)
