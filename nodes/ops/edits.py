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
from ...structured.bitmask import apply_bitmask
from ..data import Edits, StagedStep
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
    history: History,
    request_slot: Tensor,
    longest: int,
    window_start: Tensor,
    prompt: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """`[S, W, V]`: `logits[S, W, V]` as the requests and their grammars want them.

    `drafts[S, W − 1]`; `history` at `request_slot[S]`, no more than `longest` tokens of each, right
    up to `window_start[S]`, `prompt[S]` its part that is prompt; `mask[S, W, V / 32]` from the
    grammars, None where no row has one.
    """
    if edits.wanted:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if edits.biases is not None and edits.bias_values is not None:
        logits = apply_bias(logits, edits.biases[:, 0], edits.biases[:, 1], edits.bias_values)
    if edits.penalties is not None:
        repetition, presence, frequency = edits.penalties.unbind(dim=1)
        logits = apply_penalties(
            logits,
            drafts,
            history.of(request_slot, longest),
            window_start,
            prompt,
            repetition,
            presence,
            frequency,
        )
    matches: Matches | None = None
    if edits.repeats is not None:
        past = history.of(request_slot, longest)
        vocab = logits.shape[2]
        matches = find_matches(drafts, past, window_start, vocab, edits.longest_match)
        if edits.dry is not None:
            logits = _dried(logits, matches, edits.repeats, edits.dry)
    rows, width, vocab = logits.shape
    if mask is not None:
        masked = apply_bitmask(logits.reshape(rows * width, vocab), mask.reshape(rows * width, -1))
        logits = masked.view(rows, width, vocab)
    banned = logits
    if edits.words is not None:
        banned = ban_bad_words(
            banned,
            drafts,
            history.of(request_slot, longest),
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
