"""What requests change about their logits, position by position of a draft window, on the device.

Position j of a window is judged as if the drafts before it were accepted, so penalties and bad
words count them; what was settled is read from the device's own history. A placeholder is never an
index. The order is that of `SamplingParams`; a grammar's mask closes tokens before bans do, so that
a ban can give way where the grammar leaves nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...sampling.bad_words import ban_bad_words
from ...sampling.bias import apply_bias, ban_until, give_way
from ...sampling.penalties import apply_penalties
from ...sampling.repeats import Matches, apply_dry, ban_ngrams, find_matches
from ...sampling.trees import with_ancestors
from ...sampling.windows import DEPTH
from ...structured.bitmask import apply_bitmask
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
    W_FREQUENCY,
    W_REPETITION,
    WORD_LENGTH,
    WORD_SAMPLE_INDEX,
    WORD_TOKENS,
    Uploaded,
)


def edited(rows: SampleRows, logits: Tensor, history: History, mask: Mask | None) -> Tensor:
    """`[S, W, V]`: `logits[S, W, V]` as the requests of `rows` want them, and the grammars.

    `mask` is None where no row has a grammar. Each place of a draft tree is edited like a window of
    its own, whose text takes in the drafts before it.
    """
    edits, longest = rows.edits, rows.longest
    past = history.of(rows.request_slot, longest) if edits.reads_text else None
    if rows.branches is None or not edits.wanted:
        start, prompt = rows.window_start, rows.prompt
        return apply_edits(edits, logits, rows.drafts, past, start, prompt, mask)
    count, width, vocab = logits.shape
    if past is not None:
        past = with_ancestors(past, rows.drafts, rows.branches, rows.window_start).flatten(0, 1)
    start = rows.window_start[:, None] + rows.branches[:, DEPTH]
    return apply_edits(
        _of_places(edits, width),
        logits.reshape(count * width, 1, vocab),
        rows.drafts.new_empty(count * width, 0),
        past,
        start.flatten(),
        rows.prompt.repeat_interleave(width, output_size=count * width),
        mask,
    ).view(count, width, vocab)


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
        penalties=parts["warp"][W_REPETITION : W_FREQUENCY + 1].T if staged.penalized else None,
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
    mask: Mask | None,
) -> Tensor:
    """`[S, W, V]`: `logits[S, W, V]` as the requests and their grammars want them.

    `drafts[S, W − 1]`; `past[S, C]` the text, right up to `window_start[S]`, where edits read it,
    `prompt[S]` its part that is prompt; `mask` from the grammars, for as many lines in all, None
    where no row has one.
    """
    if edits.wanted:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if edits.biases is not None and edits.bias_values is not None:
        logits = apply_bias(logits, edits.biases[:, 0], edits.biases[:, 1], edits.bias_values)
    if edits.penalties is not None and past is not None:
        repetition, presence, frequency = edits.penalties.unbind(dim=1)
        logits = apply_penalties(
            logits,
            drafts,
            past,
            window_start,
            prompt,
            repetition,
            presence,
            frequency,
        )
    matches: Matches | None = None
    if edits.repeats is not None and past is not None:
        vocab = logits.shape[2]
        matches = find_matches(drafts, past, window_start, vocab, edits.longest_match)
        if edits.dry is not None:
            logits = _dried(logits, matches, edits.repeats, edits.dry)
    rows, width, vocab = logits.shape
    if mask is not None:
        lines = None if mask.lines is None else mask.lines.flatten()
        masked = apply_bitmask(logits.reshape(rows * width, vocab), mask.bits, lines)
        logits = masked.view(rows, width, vocab)
    banned = logits
    if edits.words is not None and past is not None:
        banned = ban_bad_words(
            banned,
            drafts,
            past,
            window_start,
            edits.words[:, WORD_SAMPLE_INDEX],
            edits.words[:, WORD_LENGTH],
            edits.words[:, WORD_TOKENS:],
        )
    if edits.repeats is not None and matches is not None:
        banned = ban_ngrams(banned, matches, edits.repeats[:, R_NGRAM])
    if edits.bans is not None:
        banned = ban_until(
            banned,
            window_start + 1 - prompt,
            edits.bans[:, B_SAMPLE_INDEX],
            edits.bans[:, B_TOKEN],
            edits.bans[:, B_MINIMUM],
        )
    return logits if banned is logits else give_way(banned, logits)


def _dried(logits: Tensor, matches: Matches, repeats: Tensor, dry: Tensor) -> Tensor:
    """`logits[S, W, V]` after DRY, as `repeats[S, 3 + B]` and `dry[2, S]` of `Edits` ask."""
    multiplier, base = dry.unbind()
    return apply_dry(
        logits,
        matches,
        multiplier,
        base,
        repeats[:, R_ALLOWED_LENGTH],
        repeats[:, R_LAST_N],
        repeats[:, R_BREAKERS:],
    )
