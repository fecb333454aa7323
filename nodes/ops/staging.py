"""The pinned staging buffer of a step's inputs: laid out once, filled through numpy.

Whatever the host knows is computed here, for all rows at once, so that the device has little left
to do: where each token and position comes from is an index. The buffer is a slotted, pinned value:
the copy to the device reads it, so the plan keeps the next write away until that copy is done, or
derives a second slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...backends import backend_of
from ...requests.batch import ScheduledRow, StepBatch
from ...requests.buckets import room_for
from ...requests.limits import MAX_BAD_WORD_TOKENS, MAX_DRY_BREAKERS, Limits
from ..data import StagedStep
from ..request_settings import RequestSetting
from .lines import number
from .sections import (
    GIVEN,
    NONE,
    S_NO_DRAFTS,
    S_STEP,
    T_NEXT,
    T_SLOT,
    W_TOP_P,
    ZERO,
    Parts,
    most_words,
    on_host,
    used,
)
from .transfer import CPU, pinned

Ints = npt.NDArray[np.int64]
_Placed = Sequence[tuple[int, ScheduledRow]]
"""Rows whose logits are changed, each with its place among them."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a step as arrays: D that decode, padding among them, before the others."""

    slots: Ints  # [N] request slots
    counts: Ints  # [N] query tokens
    starts: Ints  # [N] where they begin among the T tokens
    decodes: int  # D
    sample_index: Ints  # [N], −1 for a row that does not sample
    samples: Ints  # [S] which rows sample


@dataclass(frozen=True, slots=True)
class _Facts:
    """What grows with a step's rows, as far as its sizes tell it."""

    widest: int  # columns of the block tables in use
    longest: int  # tokens: no row has more
    changes: int  # entries of block tables that are new
    clears: tuple[int, ...]  # request slots whose block tables begin anew
    row_blocks: tuple[int, ...] | None  # as in `StagedStep`
    whole: bool  # every sampling row may be offered the most drafts, and has room for them
    ends: bool  # some row may come to its end


@dataclass(frozen=True, slots=True)
class _Edits:
    """What the requests of a step change about their logits, and whose these are."""

    rows: tuple[int, ...]  # [E] indices among the sampling rows
    readers: int  # the first so many are changed by what was written before
    biases: list[tuple[int, int, float]]  # here and below by their place among `rows`
    bans: list[tuple[int, ...]]
    words: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Written:
    """The words of a step, but for its number and new blocks: these are written each time."""

    of: tuple[object, ...]  # all that they depend on
    step: StagedStep
    numbers: Ints  # [words]
    parts: Parts  # of `numbers`


_LASTING = itemgetter(
    *(
        place
        for place, name in enumerate(ScheduledRow._fields)
        if name not in ("blocks", "known", "passed", "most")  # in `_Facts` and the new blocks
    )
)


class Staging:
    """A buffer for the largest step that the limits allow; its parts are those of `sections.py`."""

    fixed = True
    """Its tensors never move: captured graphs know it by identity."""

    def __init__(
        self,
        limits: Limits,
        device: torch.device = CPU,
        settings: tuple[RequestSetting, ...] = (),
    ) -> None:
        self.limits, self._settings = limits, settings
        self.flat = pinned(most_words(limits, len(settings)), device=device)
        self._numbers = self.flat.numpy()
        self._gathered = backend_of(device).on_host
        self._blocks = limits.blocks_for(limits.context_length)
        # Where the parts lie that the device puts one after the other, before and behind `given`.
        self._request_slots = limits.max_rows + 1
        self._given = 2 * self._request_slots
        # A batch of rows that decode mostly differs from the one before in what has grown. This
        # is kept beside the buffer, of which no content is read that an op wrote before.
        self._last: _Written | None = None

    def fill(self, batch: StepBatch) -> StagedStep:
        """Write the batch into the buffer; the sizes that shape the device work.

        Rows that decode come before the others. Raises nothing of its own.
        """
        changes = _joined(self._changes(batch.rows))
        facts = self._facts(batch, len(changes.T))
        of = (facts, batch.padding, *map(_LASTING, batch.rows))
        if self._last is None or self._last.of != of:
            self._last = None
            self._last = self._written(of, facts, batch)
        last = self._last
        step, parts = last.step, last.parts
        parts["samples"][S_STEP, : len(batch.sampling)] = batch.step
        if step.changes:
            nowhere = self._request_slots * (self._blocks + 1) - 1  # the last entry stays 0
            parts["change_at"][:], parts["change_to"][:] = nowhere, 0
            parts["change_at"][: len(changes.T)], parts["change_to"][: len(changes.T)] = changes
        self._numbers[: len(last.numbers)] = last.numbers
        return step

    def _written(self, of: tuple[object, ...], facts: _Facts, batch: StepBatch) -> _Written:
        known = _joined(_known(batch.rows, self.limits.context_length + 1))
        edits = _edits(batch)
        step = self._sizes(facts, batch, len(known.T), edits)
        numbers = np.zeros(used(step), np.int64)
        parts, rows = on_host(step, numbers), self._rows(batch)
        self._fill_tokens(step, batch, rows, parts)
        self._fill_samples(step, batch, rows, parts)
        _fill_edits(step, batch, edits, parts)
        parts["request_slots"][:] = rows.slots
        if facts.clears:
            parts["clears"][:] = facts.clears
        if step.known:
            parts["history_at"][:], parts["history_ids"][:] = known
        if step.prompt:
            parts["prompt"][:] = np.array(list(_prompt_targets(batch.rows, rows.starts))).T
        return _Written(of, step, numbers, parts)

    # --- sizes

    def _facts(self, batch: StepBatch, changes: int) -> _Facts:
        rows, width, most = batch.rows, batch.draft_width, self.limits.context_length
        reached = tuple([self._reached(row, width) for row in rows])
        widest, row_blocks = max(reached), None
        longest = max([row.most for row in rows])
        if batch.padding is None:
            row_blocks = _where_it_helps(reached)
        else:
            widest, changes = self._rounded(widest), _few(changes, batch.padded_size)
            longest = min(most, widest * self.limits.block_size)
        return _Facts(
            widest=widest,
            longest=longest,
            changes=changes,
            clears=tuple([row.request_slot for row in rows if not row.known]),
            row_blocks=row_blocks,
            whole=all([self._whole(width, row) for row in batch.sampling]),
            ends=any([row.most > min(row.limit, most) for row in rows]),
        )

    def _sizes(self, facts: _Facts, batch: StepBatch, known: int, edits: _Edits) -> StagedStep:
        rounded, rows = batch.padding is not None, batch.rows
        if rounded:
            query_lens = (batch.width,) * batch.padded_size
        else:
            query_lens = tuple([row.queries for row in rows])
        return StagedStep(
            flat=self.flat,
            tokens=sum(query_lens),
            query_lens=query_lens,
            blocks=facts.widest,
            row_blocks=facts.row_blocks,
            samples=batch.samples,
            width=batch.width,
            draft_width=batch.draft_width,
            whole=facts.whole,
            decodes=batch.padded_size if rounded else sum(row.decodes for row in rows),
            given=sum(len(row.tokens) for row in rows),
            adapters=any(row.request.adapter for row in rows),
            axes=any(row.request.axes is not None for row in rows),
            encoded=sum(count for row in rows for *_, count in row.encoded),
            long=self.limits.rope_switch is not None,
            ends=facts.ends,
            clears=len(facts.clears),
            changes=facts.changes,
            known=known,
            prompt=sum(len(row.prompt_targets) for row in rows),
            edited=len(edits.rows),
            readers=edits.readers,
            biases=len(edits.biases),
            bans=len(edits.bans),
            words=len(edits.words),
            longest=facts.longest,
            forced=any(row.forced >= 0 for row in batch.sampling),
            greedy=batch.all_greedy,
            any_top_k=batch.any_top_k,
            any_top_p=batch.any_top_p,
            penalized=any(row.request.params.penalized for row in batch.sampling),
            repeats=max((row.request.params.longest_match for row in batch.sampling), default=0),
            dry=any(row.request.params.dry for row in batch.sampling),
            xtc=any(row.request.params.xtc for row in batch.sampling),
            settings=self._given_settings(batch),
            structured=batch.structured,
            logprobs=batch.logprobs,
            prompt_logprobs=batch.prompt_logprobs,
            one_off=not rounded,
        )

    def _reached(self, row: ScheduledRow, draft_width: int) -> int:
        """How many of a row's blocks the step reads or writes.

        It has blocks for later chunks of its prompt, and for a wider window than it was offered.
        Of what it comes to, the last token is in no pass yet; the drafter writes so many past it.
        """
        return min(len(row.blocks), self.limits.blocks_for(row.most - 1 + draft_width))

    def _whole(self, draft_width: int, row: ScheduledRow) -> bool:
        """Whether a row may be offered so many drafts, and has a place for each of them.

        No pass of a drafter takes in the last draft, so that needs none.
        """
        room = min(self.limits.context_length, len(row.blocks) * self.limits.block_size)
        return row.drafts == draft_width and row.most + draft_width - 1 <= room

    def _given_settings(self, batch: StepBatch) -> tuple[str, ...]:
        """The names of what nodes take from requests, if any sampling row's request gives any."""
        given = any(row.request.settings for row in batch.sampling)
        return tuple(each.name for each in self._settings) if given else ()

    def _rounded(self, blocks: int) -> int:
        """A width of block tables that comes up again: where kernels stop at a row's length, all
        there is; else the next of few sizes, since each column is gathered."""
        if not self._gathered:
            return self._blocks
        power = 1 << (max(blocks, 4) - 1).bit_length()
        less = power * 3 // 4 if power >= 16 else power
        return min(self._blocks, less if blocks <= less else power)

    # --- block tables and history

    def _changes(self, rows: Sequence[ScheduledRow]) -> Iterator[tuple[Ints, Ints]]:
        """What the device's block tables lack: where, in the tables as one line, and the blocks."""
        width = self._blocks + 1
        for row in rows:
            blocks, first = row.blocks, row.request_slot * width
            if row.passed:
                passed = np.array(row.passed)
                yield first + passed, np.zeros_like(passed)
            if row.known < len(blocks):
                fresh = np.array(blocks[row.known :])
                yield np.arange(first + row.known, first + len(blocks)), fresh

    # --- rows, tokens and windows

    def _rows(self, batch: StepBatch) -> _Rows:
        padding, width = batch.padding or 0, batch.width
        slots = [row.request_slot for row in batch.rows] + [self.limits.max_rows] * padding
        if batch.padding is not None:
            counts = np.full(len(slots), width)
            sampling: Any = np.arange(len(slots))
            sample_index = sampling
        else:
            counts = np.array([row.queries for row in batch.rows])
            samples = np.array([row.samples for row in batch.rows])
            sampling = np.flatnonzero(samples)
            sample_index = np.where(samples, np.cumsum(samples) - 1, -1)
        decodes = sum(row.decodes for row in batch.rows) + padding
        starts = np.cumsum(counts) - counts
        return _Rows(np.array(slots), counts, starts, decodes, sample_index, sampling)

    def _fill_tokens(self, step: StagedStep, batch: StepBatch, rows: _Rows, parts: Parts) -> None:
        """The T tokens: decode rows, padding, then chunks of prompts."""
        own = rows.slots.repeat(rows.counts)
        at = np.arange(step.tokens) - rows.starts.repeat(rows.counts)  # in its row
        ids, bases = (line[: step.tokens] for line in parts["sources"])
        end = step.tokens - step.given  # of what decodes
        self._window_sources(step, own[:end], at[:end], ids[:end], bases[:end])
        given = parts["given"]
        given[ZERO], given[NONE] = 0, -1
        tokens = parts["tokens"]
        tokens[T_SLOT] = own
        parts["following"][0] = -1
        tokens[T_NEXT] = sampled = step.samples * step.width
        windows = rows.sample_index * step.width  # where they begin among what is sampled
        offered = self._offered(batch)
        wanted = offered.repeat(rows.counts)[:end]
        tokens[T_NEXT, :end][wanted] = (windows.repeat(rows.counts)[:end] + at[:end])[wanted]
        if step.given:
            chunks = [row for row in batch.rows if not row.decodes]
            first = self._given + GIVEN
            ids[end:] = np.arange(first, first + step.given)
            bases[end:] = ids[end:] + step.given
            text = given[GIVEN : GIVEN + step.given]
            text[:] = np.fromiter(
                chain.from_iterable(row.tokens for row in chunks), np.int64, step.given
            )
            firsts = np.array([row.start for row in chunks])
            given[GIVEN + step.given :] = at[end:] + firsts.repeat(rows.counts[rows.decodes :])
            following, lasts = parts["following"][1:], np.cumsum(rows.counts[rows.decodes :]) - 1
            following[:-1] = text[1:]
            following[lasts] = [row.following for row in chunks]
            samples, offered = rows.sample_index[rows.decodes :] >= 0, offered[rows.decodes :]
            after = np.arange(sampled + 1, sampled + 1 + step.given)
            after[lasts[samples]] = windows[rows.decodes :][samples]
            after[(samples & ~offered).repeat(rows.counts[rows.decodes :])] = sampled
            tokens[T_NEXT, end:] = after
        if step.adapters:
            numbers = [row.request.adapter for row in batch.rows] + [0] * (batch.padding or 0)
            parts["adapters"][:] = np.array(numbers).repeat(rows.counts)
        if step.axes:
            parts["axes"][:] = 0
            for row, start, count in zip(batch.rows, rows.starts, rows.counts, strict=False):
                parts["axes"][:, start : start + count] = _axes(row, int(count))
        if step.encoded:
            parts["encoded"][:] = _joined(_encoded(batch.rows, rows.starts))
        if step.long or step.ends:
            limits = self._limits(batch)
            if step.long:
                assert self.limits.rope_switch is not None, "some texts are long"
                parts["long"][:] = (limits > self.limits.rope_switch + 1).repeat(rows.counts)
            if step.ends:
                windows = limits[rows.samples].repeat(step.width if step.width > 1 else 0)
                parts["ends"][: step.tokens] = limits.repeat(rows.counts) - 2
                parts["ends"][step.tokens :] = windows - 2
        if step.width > 1:
            parts["offsets"][:end], parts["offsets"][end : step.tokens] = at[:end], 0

    def _offered(self, batch: StepBatch) -> npt.NDArray[np.bool_]:
        """Which rows may be offered drafts for their next window, `[N]`."""
        nobody = [False] * (batch.padding or 0)
        return np.array([row.request.window > 1 for row in batch.rows] + nobody)

    def _limits(self, batch: StepBatch) -> Ints:
        """At how many tokens each row ends, `[N]`."""
        most = self.limits.context_length
        return np.array(
            [*(min(row.limit, most) for row in batch.rows), *[most] * (batch.padding or 0)]
        )

    def _window_sources(
        self, step: StagedStep, slots: Ints, at: Ints, ids: Ints, bases: Ints
    ) -> None:
        """Of entries at position `at` of the windows of `slots`; a request slot of nobody has none.

        At 0 is the last token, behind it are the pending drafts, and behind all of them is none.
        """
        bases[:] = self._request_slots + slots
        ids[:] = slots
        if step.width > 1:
            drafts = self._given + GIVEN + 2 * step.given - 1
            pending = drafts + slots * self.limits.draft_tokens + at
            ids[:] = np.where(at > 0, pending, ids)
            ids[at >= step.width] = self._given + NONE
        if step.decodes > 0:
            nobody = slots == self.limits.max_rows
            ids[nobody] = self._given + (NONE if step.width > 1 else ZERO)
            bases[nobody] = self._given + NONE

    def _fill_samples(self, step: StagedStep, batch: StepBatch, rows: _Rows, parts: Parts) -> None:
        """The windows of the sampling rows, and what their requests ask for."""
        if not step.samples:
            return
        sampling, count, width = batch.sampling, len(batch.sampling), step.width
        slots, decode = rows.slots[rows.samples], rows.samples < rows.decodes
        lasts = rows.starts[rows.samples] + rows.counts[rows.samples] - 1
        ids, bases = parts["sources"][:, step.masked :]
        self._window_sources(step, slots, np.zeros_like(slots), ids, bases)
        # Where a chunk ends, its last token is the first of the window.
        ids[~decode] = parts["sources"][0, lasts[~decode]]
        bases[~decode] = parts["sources"][1, lasts[~decode]]
        if width > 1:
            ids, bases = parts["sources"][:, step.tokens : step.masked]
            at = np.tile(np.arange(1, width + 1), step.samples)
            self._window_sources(step, slots.repeat(width), at, ids, bases)
            nobody = slots == self.limits.max_rows
            parts["sources"][1, step.masked :][nobody] = self._given + ZERO
            others = (~decode | nobody).repeat(width)
            ids[others], bases[others] = self._given + NONE, self._given + ZERO
            parts["offsets"][step.tokens : step.masked] = at
            parts["offsets"][step.masked :] = 0
        positions = np.arange(width)
        firsts = np.where(decode, rows.starts[rows.samples], lasts)
        # A row with a smaller window repeats the index of its last token.
        parts["logit_index"][:] = np.minimum(firsts[:, None] + positions, lasts[:, None])
        fields = [
            (
                row.request_slot,
                row.forced,
                row.request.params.seed,
                row.request.prompt_tokens,
                row.request.params.top_k,
                row.drafts,
                row.generation,
            )
            for row in sampling
        ]
        of_nobody = (self.limits.max_rows, -1, 0, 0, 0, 0, -1)
        samples = parts["samples"]
        samples[0] = rows.samples
        samples[1:8] = np.array(fields + [of_nobody] * (step.samples - count)).T
        samples[S_STEP] = 0
        samples[S_NO_DRAFTS] = 0
        warp = parts["warp"]
        warp[:, :count] = np.array([_warp(row) for row in sampling]).T
        if count < step.samples:
            warp[:, count:] = 0
            warp[W_TOP_P, count:] = 1
        if step.xtc:
            nobody = [(0.0, 1.0)] * (step.samples - count)
            parts["xtc"][:] = np.array([_xtc(row) for row in sampling] + nobody).T
        if step.settings:
            for line, setting in zip(parts["settings"], self._settings, strict=True):
                line[:] = setting.default
                line[:count] = [
                    dict(row.request.settings).get(setting.name, setting.default)
                    for row in sampling
                ]


def _where_it_helps(reached: tuple[int, ...]) -> tuple[int, ...] | None:
    """Blocks of each row; None where keys for all columns are less than twice those of all rows.

    Steps differ in these numbers that are alike otherwise, so they are left out where they help
    little.
    """
    return reached if len(reached) * max(reached) > 2 * sum(reached) else None


def _few(count: int, least: int) -> int:
    """The next power of two, and `least` at least: numbers that come up again."""
    return max(least, 1 << (count - 1).bit_length() if count else 0)


def _joined(pieces: Iterable[tuple[Ints, Ints]]) -> Ints:
    """`[2, L]` of pairs of arrays, one after the other."""
    found = [np.stack(piece) for piece in pieces]
    return np.concatenate(found, axis=1) if found else np.empty((2, 0), dtype=np.int64)


def _known(rows: Sequence[ScheduledRow], width: int) -> Iterator[tuple[Ints, Ints]]:
    """Tokens for the history: where, in the history as one line, and the tokens."""
    for row in rows:
        first = row.request_slot * width
        for start, tokens in ((0, row.prefix), (row.start, row.tokens)):
            if tokens:
                at = first + start
                yield np.arange(at, at + len(tokens)), np.array(tokens)


def _axes(row: ScheduledRow, count: int) -> Ints | int:
    """What is added to the positions of a row's tokens, `[3, count]`, or all of it."""
    axes = row.request.axes
    if axes is None:
        return 0
    return axes.behind if row.decodes else axes.of(row.start, count)


def _encoded(rows: Sequence[ScheduledRow], starts: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Tokens of chunks that stand for encoded rows, and these."""
    for row, start in zip(rows, starts.tolist(), strict=False):
        for at, first, count in row.encoded:
            yield np.arange(start + at, start + at + count), np.arange(first, first + count)


def _warp(row: ScheduledRow) -> tuple[float, ...]:
    params = row.request.params
    return (
        params.temperature,
        params.top_p,
        params.min_p,
    )


def _penalties(row: ScheduledRow) -> tuple[float, ...]:
    params = row.request.params
    return (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)


def _repeats(row: ScheduledRow) -> tuple[int, ...]:
    params, breakers = row.request.params, row.request.dry_breakers
    allowed_length, last_n = params.dry_allowed_length, params.dry_penalty_last_n
    padding = (-1,) * (MAX_DRY_BREAKERS - len(breakers))
    return (params.no_repeat_ngram_size, allowed_length, last_n, *breakers, *padding)


def _dry(row: ScheduledRow) -> tuple[float, ...]:
    params = row.request.params
    return (params.dry_multiplier if params.dry else 0.0, params.dry_base)


def _xtc(row: ScheduledRow) -> tuple[float, ...]:
    return (row.request.params.xtc_probability, row.request.params.xtc_threshold)


_ROW_EDITS: tuple[tuple[str, Callable[[ScheduledRow], tuple[float, ...]], tuple[float, ...]], ...]
_ROW_EDITS = (
    ("penalties", _penalties, (1.0, 0.0, 0.0)),
    ("repeats", _repeats, (0, 1, -1, *(-1,) * MAX_DRY_BREAKERS)),
    ("dry", _dry, (0.0, 1.0)),
)
"""Parts with an entry of every row that reads its text, and what a row of nobody has."""


def _edits(batch: StepBatch) -> _Edits:
    """Rows that read their text come first. Where there is room for more than are changed, others
    fill it up: they ask for nothing."""
    sampling = batch.sampling
    reading = [index for index, row in enumerate(sampling) if _reads(row)]
    changed = [
        index
        for index, row in enumerate(sampling)
        if not _reads(row) and (row.request.params.biases or _banned(row))
    ]
    rounded = batch.padding is not None
    count, readers = (
        room_for(asked, batch.samples, rounded=rounded)
        for asked in (len(reading) + len(changed), len(reading))
    )
    order = [*reading, *changed]
    if count == batch.samples and readers in (0, count):
        order = list(range(count))
    elif len(order) < count:
        others = sorted({*range(batch.samples)} - {*order})
        order += others[: count - len(order)]
    rows = [(place, sampling[index]) for place, index in enumerate(order) if index < len(sampling)]
    biases, bans, words = list(_biases(rows)), list(_bans(rows)), list(_words(rows))
    return _Edits(tuple(order), readers, biases, bans, words)


def _fill_edits(step: StagedStep, batch: StepBatch, edits: _Edits, parts: Parts) -> None:
    if step.apart:
        parts["edited"][:] = edits.rows
        number(edits.rows, parts["edited_lines"])
    if edits.biases:
        parts["biases"][:] = [(place, token) for place, token, _ in edits.biases]
        parts["bias_values"][:] = [value for *_, value in edits.biases]
    if edits.bans:
        parts["bans"][:] = edits.bans
    if edits.words:
        parts["words"][:] = edits.words
    reading = edits.rows[: step.readers]
    for name, each, nothing in _ROW_EDITS:
        if parts[name].size:
            entries = [
                each(batch.sampling[index]) if index < len(batch.sampling) else nothing
                for index in reading
            ]
            parts[name][:] = entries if name == "repeats" else np.array(entries).T


def _reads(row: ScheduledRow) -> bool:
    """Whether what was written before changes the row's logits."""
    params = row.request.params
    return bool(params.penalized or params.longest_match or row.request.bad_words)


def _banned(row: ScheduledRow) -> tuple[int, ...]:
    """Stop tokens of a row that may still be too short to stop."""
    return row.request.stop_tokens if row.too_short else ()


def _prompt_targets(rows: Sequence[ScheduledRow], starts: Ints) -> Iterator[tuple[int, int]]:
    """Tokens of chunks that predict a token of the prompt, where the request wants them."""
    for row, start in zip(rows, starts.tolist(), strict=False):
        yield from enumerate(row.prompt_targets, start)


def _biases(rows: _Placed) -> Iterable[tuple[int, int, float]]:
    return ((place, *bias) for place, row in rows for bias in row.request.params.biases)


def _bans(rows: _Placed) -> Iterable[tuple[int, ...]]:
    return (
        (place, token, row.request.params.min_tokens)
        for place, row in rows
        for token in _banned(row)
    )


def _words(rows: _Placed) -> Iterable[tuple[int, ...]]:
    return (
        (place, len(word), *(-1,) * (MAX_BAD_WORD_TOKENS - len(word)), *word)
        for place, row in rows
        for word in row.request.bad_words
    )
