"""What requests change about their logits, position by position of a draft window, on the device.

Position j of a window is judged as if the drafts before it were accepted, so penalties and bad
words count them; what was settled is read from the device's own history. A placeholder is never an
index. The order is that of `SamplingParams`; a grammar's mask closes tokens before bans do, so that
a ban can give way where the grammar leaves nothing else.

Only lines of rows whose requests ask for something are widened and edited, and only texts that an
edit reads are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...backends.kernels import runs_on
from ...sampling.bad_words import ban_bad_words
from ...sampling.bias import apply_bias, ban_until, give_way
from ...sampling.penalties import apply_penalties
from ...sampling.repeats import Matches, apply_dry, ban_ngrams, find_matches
from ...sampling.stand_ins import StandIns
from ...sampling.trees import with_ancestors
from ...sampling.windows import DEPTH
from ...structured.bitmask import ALL_ALLOWED, apply_bitmask
from ..data import Edits, Mask, SampleRows, StagedStep
from .history import History
from .sections import (
    B_MINIMUM,
    B_SAMPLE_INDEX,
    B_TOKEN,
    R_ALLOWED_LENGTH,
    R_BREAKERS,
    R_LAST_N,
    R_NGRAM,
    WORD_LENGTH,
    WORD_SAMPLE_INDEX,
    WORD_TOKENS,
    Uploaded,
)


def edited(
    rows: SampleRows, logits: Tensor, history: History, mask: Mask | None
) -> tuple[Tensor, StandIns | None]:
    """`[S, W, V]`: `logits[S, W, V]` as the requests of `rows` want them, and the grammars.

    Where only some rows ask for anything, the logits as they are, and what stands in for lines of
    these rows. `mask` is None where no row has a grammar, or is applied later: edited lines alone
    are masked here. Each place of a draft tree is edited like a window of its own, whose text takes
    in the drafts before it.
    """
    edits = rows.edits
    if not edits.wanted:
        return logits, None
    if edits.rows is None or edits.lines is None:
        return _windows(edits, rows, logits, history, None if mask is None else _bits(mask)), None
    bits = None
    if mask is not None:
        bits = _bits_of(edits.rows, mask, logits.shape[1])
    scores = _windows(edits, rows, logits.index_select(0, edits.rows), history, bits)
    return logits, StandIns(scores, edits.rows, edits.lines)


def _windows(
    edits: Edits, rows: SampleRows, logits: Tensor, history: History, bits: Masks | None
) -> Tensor:
    """The edited `logits[E, W, V]` of the rows that `edits` names among `rows`."""

    def of(each: Tensor, count: int | None = None) -> Tensor:
        """`each[S, ...]` of the rows that are edited, or of the first `count` of them."""
        if edits.rows is None or not each.numel():
            return each[:count]
        return each.index_select(0, edits.rows[:count])

    start, prompt = rows.window_start, rows.prompt
    if edits.reads_text or edits.bans is not None or rows.branches is not None:
        start, prompt = of(start), of(prompt)
    past, drafts, readers = None, rows.drafts[:0], 0
    if edits.reads_text:
        readers = len(logits) if edits.readers is None else edits.readers
        drafts = of(rows.drafts, readers)
        past = history.of(of(rows.request_slot, readers), rows.longest)
    if rows.branches is None:
        return apply_edits(edits, logits, drafts, past, start, prompt, bits)
    count, width, vocab = logits.shape
    branches = of(rows.branches)
    if past is not None:
        first = start[:readers]
        past = with_ancestors(past, drafts, branches[:readers], first).flatten(0, 1)
    start = start[:, None] + branches[:, DEPTH]
    return apply_edits(
        _of_places(edits, width),
        logits.reshape(count * width, 1, vocab),
        drafts.new_empty(readers * width, 0),
        past,
        start.flatten(),
        prompt.repeat_interleave(width, output_size=count * width),
        bits,
    ).view(count, width, vocab)


Masks = tuple[Tensor, Tensor | None]
"""Masks `[M, V / 32]`, and which of them each line of some logits has, as for `masked`."""


def masked(logits: Tensor, bits: Tensor, lines: Tensor | None, *, in_place: bool = False) -> Tensor:
    """`[L, V]`: `logits[L, V]` after `structured.bitmask.apply_bitmask`, by a kernel if they run.

    `bits[M, V / 32]`, `lines[L]`. A kernel may write `in_place`. Raises `ValueError` as that does.
    """
    if not runs_on(logits):
        return apply_bitmask(logits, bits, lines)
    from ...sampling.kernels import mask as kernel

    return kernel.apply_bitmask(logits, bits, lines, in_place=in_place)


def _bits(mask: Mask) -> Masks:
    return mask.bits, None if mask.lines is None else mask.lines.flatten()


def _bits_of(rows: Tensor, mask: Mask, width: int) -> Masks:
    """The masks of `rows[E]`, a line for each of their places, however many other rows have."""
    if mask.lines is None:
        of_rows = mask.bits.reshape(-1, width, mask.bits.shape[1])
        return of_rows.index_select(0, rows).flatten(0, 1), None
    lines = mask.lines.index_select(0, rows).flatten()
    found = mask.bits.index_select(0, lines.clamp_min(0))
    return found.masked_fill_((lines < 0)[:, None], ALL_ALLOWED), None


def _of_places(edits: Edits, width: int) -> Edits:
    """The same of windows whose `width` places are each a row."""

    def named(entries: Tensor | None) -> Tensor | None:
        """Sparse entries, for each place of the row that is in their first column."""
        if entries is None:
            return None
        place = torch.arange(width, device=entries.device)
        row = torch.where(entries[:, :1] >= 0, entries[:, :1] * width + place, -1)
        rest = entries[:, None, 1:].expand(-1, width, -1)
        return torch.cat([row[..., None], rest], dim=2).flatten(0, 1)

    def each(lines: Tensor | None, dim: int = 0) -> Tensor | None:
        return None if lines is None else lines.repeat_interleave(width, dim=dim)

    return Edits(
        penalties=each(edits.penalties),
        biases=named(edits.biases),
        bias_values=each(edits.bias_values),
        bans=named(edits.bans),
        words=named(edits.words),
        repeats=each(edits.repeats),
        dry=each(edits.dry, 1),
        longest_match=edits.longest_match,
    )


def edits_of(staged: StagedStep, parts: Uploaded) -> Edits:
    """What this step uses of the `parts` of the staging buffer, which are on the device."""
    return Edits(
        rows=parts["edited"] if staged.apart else None,
        lines=parts["edited_lines"] if staged.apart else None,
        readers=staged.readers if staged.apart else None,
        penalties=parts["penalties"].T if staged.penalized else None,
        biases=parts["biases"] if staged.biases else None,
        bias_values=parts["bias_values"] if staged.biases else None,
        bans=parts["bans"] if staged.bans else None,
        words=parts["words"] if staged.words else None,
        repeats=parts["repeats"] if staged.repeats else None,
        dry=parts["dry"] if staged.dry else None,
        longest_match=staged.repeats,
    )


def apply_edits(
    edits: Edits,
    logits: Tensor,
    drafts: Tensor,
    past: Tensor | None,
    window_start: Tensor,
    prompt: Tensor,
    masks: Masks | None,
) -> Tensor:
    """`[E, W, V]`: `logits[E, W, V]` as the requests and their grammars want them.

    `past[T, C]` the text of the first rows, right up to their `window_start[E]`, where edits read
    it, and `drafts[T, W − 1]` what comes after; `prompt[E]` the part of the text that is prompt;
    `masks` from the grammars, for E · W lines, None where no row has one.
    """
    given = logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if edits.biases is not None and edits.bias_values is not None:
        logits = apply_bias(logits, edits.biases[:, 0], edits.biases[:, 1], edits.bias_values)
    reading = _Reading(edits, drafts, past, window_start, prompt, logits.shape[2])
    logits = reading.changed(logits, reading.penalized)
    rows, width, vocab = logits.shape
    if masks is not None:
        flat = logits.reshape(rows * width, vocab)
        logits = masked(flat, *masks, in_place=logits is not given).view(rows, width, vocab)
    banned = reading.changed(logits, reading.banned)
    if edits.bans is not None:
        banned = ban_until(
            banned,
            window_start + 1 - prompt,
            edits.bans[:, B_SAMPLE_INDEX],
            edits.bans[:, B_TOKEN],
            edits.bans[:, B_MINIMUM],
        )
    return logits if banned is logits else give_way(banned, logits)


@dataclass(frozen=True)
class _Reading:
    """What changes logits by the text before them: those of the first T rows, which have one."""

    edits: Edits
    drafts: Tensor  # [T, W − 1]
    past: Tensor | None  # [T, C]; None: nobody's text is read
    window_start: Tensor  # [E]
    prompt: Tensor  # [E]
    vocab: int

    def changed(self, logits: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """`logits[E, W, V]` with what `change` makes of those of the first T rows, and the text."""
        if self.past is None:
            return logits
        readers = len(self.past)
        of_readers = logits[:readers]
        found = change(of_readers, self.past)
        if found is of_readers or readers == len(logits):
            return logits if found is of_readers else found
        return torch.cat([found, logits[readers:]])

    def penalized(self, logits: Tensor, past: Tensor) -> Tensor:
        """`logits[T, W, V]` after penalties, then DRY."""
        edits, readers = self.edits, len(past)
        if edits.penalties is not None:
            logits = apply_penalties(
                logits,
                self.drafts,
                past,
                self.window_start[:readers],
                self.prompt[:readers],
                *edits.penalties.unbind(dim=1),
            )
        if edits.repeats is not None and edits.dry is not None and self._matches is not None:
            multiplier, base = edits.dry.unbind()
            logits = apply_dry(
                logits,
                self._matches,
                multiplier,
                base,
                edits.repeats[:, R_ALLOWED_LENGTH],
                edits.repeats[:, R_LAST_N],
                edits.repeats[:, R_BREAKERS:],
            )
        return logits

    def banned(self, logits: Tensor, past: Tensor) -> Tensor:
        """`logits[T, W, V]` without bad words, nor n-grams that would come again."""
        words = self.edits.words
        if words is not None:
            logits = ban_bad_words(
                logits,
                self.drafts,
                past,
                self.window_start[: len(past)],
                words[:, WORD_SAMPLE_INDEX],
                words[:, WORD_LENGTH],
                words[:, WORD_TOKENS:],
            )
        if self.edits.repeats is not None and self._matches is not None:
            logits = ban_ngrams(logits, self._matches, self.edits.repeats[:, R_NGRAM])
        return logits

    @cached_property
    def _matches(self) -> Matches | None:
        """Where the end of each text stands earlier, if anybody asks."""
        if self.past is None or self.edits.repeats is None:
            return None
        return find_matches(
            self.drafts,
            self.past,
            self.window_start[: len(self.past)],
            self.vocab,
            self.edits.longest_match,
        )
