"""Where the parts of a staged step lie in its one buffer: on the host, and after one copy.

All parts are runs of 64-bit words in one order, as long as the step needs them, so a step takes
one copy to the device, however many parts it has. Both sides find them by the sizes of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...requests.limits import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_DRY_BREAKERS,
    MAX_STOP_TOKENS,
    Limits,
)
from ..data import StagedStep

# What lies before the tokens of prompts in `given`: numbers for entries that stand for no token.
ZERO, NONE, GIVEN = 0, 1, 2
# Lines of `tokens`: one entry for each query token.
T_SLOT, T_NEXT, T_FIELDS = 0, 1, 2
# Lines of `samples`: one entry for each sampling row.
S_BATCH_INDEX, S_SLOT, S_FORCED, S_SEED, S_PROMPT, S_TOP_K, S_DRAFTS = 0, 1, 2, 3, 4, 5, 6
S_GENERATION, S_STEP, S_NO_DRAFTS, S_FIELDS = 7, 8, 9, 10
# Lines of `warp`, beside it: the settings that are not integers.
W_TEMPERATURE, W_TOP_P, W_MIN_P = range(3)
W_FIELDS = 3
# Columns of `bans`: a token that may not come before an output position; of `words`: a sequence.
B_SAMPLE_INDEX, B_TOKEN, B_MINIMUM, B_FIELDS = 0, 1, 2, 3
WORD_SAMPLE_INDEX, WORD_LENGTH, WORD_TOKENS = 0, 1, 2
# Columns of `repeats`; lines of `penalties`, `dry` and `xtc`.
R_NGRAM, R_ALLOWED_LENGTH, R_LAST_N, R_BREAKERS = 0, 1, 2, 3
PENALTY_FIELDS, DRY_FIELDS, XTC_FIELDS = 3, 2, 2

FLOATS = ("warp", "bias_values", "penalties", "dry", "xtc", "settings")
"""Parts of float64; all others are of int64, but for those below."""
PACKED = {"history_ids": np.int32, "long": np.bool_}
"""Parts of smaller numbers, and their types on the host: as many as there are, then padding."""
_TORCH = {"history_ids": torch.int32, "long": torch.bool}

Parts = Mapping[str, npt.NDArray[Any]]


class Uploaded(dict[str, Tensor]):
    """The parts of a staged step on the device, by name."""


def shapes(step: StagedStep) -> dict[str, tuple[int, ...]]:
    """The parts in their order: what each is a word for.

    `sources[2, E]`: of each entry where its token and its position come from: an index into what
    the request slots have last sampled, how far they are, `given`, and the pending drafts, one
    after the other. `offsets[E]`: what is added to the position. `ends[M]`: the last position that
    may be an input. The entries are the T tokens, then the windows of the sampling rows with a
    place behind the last draft, where there are drafts; then, not among the M before, the first
    token of each window. `given[2 + 2 · G]`: 0, −1, then tokens of prompts, then their positions.
    `following[1 + G]`: −1, then the token after each of those. `adapters[T]`: the number of each
    token's adapter, where any row has one. `axes[3, T]`: what is added to each token's position on
    each axis, where any row has axes. `encoded[2, E]`: tokens that stand for encoded rows, and
    which these are.

    `clears[F]`: request slots whose block tables begin anew; `change_at[C]` and `change_to[C]`:
    entries of the block tables that are new. `history_at[K]`, `history_ids[K]`: known tokens for
    the history. `prompt[2, P]`: indices of tokens whose prediction of a known next token is asked
    for, and that token.

    `edited[E]`: the sampling rows whose logits are changed; `edited_lines[S, W]`: of each place its
    line among theirs, −1 where it has none; both where they are not simply all. `biases`, `bans`
    and `words` are sparse, each entry with its index among the E; `penalties`, `repeats` and `dry`
    have an entry of each of the first of these, which read the text, where any uses them; `xtc`
    and `settings` of every sampling row where any does.
    """
    samples, width, entries = step.samples, step.width, step.masked + step.samples
    return {
        "sources": (2, entries),
        "offsets": (entries if width > 1 else 0,),
        "ends": (step.masked if step.ends else 0,),
        "given": (GIVEN + 2 * step.given,),
        "following": (1 + step.given,),
        "tokens": (T_FIELDS, step.tokens),
        "adapters": (step.tokens if step.adapters else 0,),
        "axes": (3, step.tokens if step.axes else 0),
        "encoded": (2, step.encoded),
        "long": (step.tokens if step.long else 0,),
        "request_slots": (len(step.query_lens),),
        "samples": (S_FIELDS, samples),
        "warp": (W_FIELDS, samples),
        "logit_index": (samples, width),
        "clears": (step.clears,),
        "change_at": (step.changes,),
        "change_to": (step.changes,),
        "history_at": (step.known,),
        "history_ids": (step.known,),
        "prompt": (2, step.prompt),
        "edited": (step.edited if step.apart else 0,),
        "edited_lines": (samples if step.apart else 0, width),
        "biases": (step.biases, 2),
        "bias_values": (step.biases,),
        "bans": (step.bans, B_FIELDS),
        "words": (step.words, WORD_TOKENS + MAX_BAD_WORD_TOKENS),
        "penalties": (PENALTY_FIELDS, step.readers if step.penalized else 0),
        "repeats": (step.readers if step.repeats else 0, R_BREAKERS + MAX_DRY_BREAKERS),
        "dry": (DRY_FIELDS, step.readers if step.dry else 0),
        "xtc": (XTC_FIELDS, samples if step.xtc else 0),
        "settings": (len(step.settings), samples),
    }


def most_words(limits: Limits, settings: int = 0) -> int:
    """Words of the largest step that the limits allow, of nodes that take so many `settings` from
    requests. Raises nothing."""
    rows, tokens, window = limits.max_rows, limits.token_budget, limits.window
    entries = tokens + rows * window + rows
    table = limits.blocks_for(limits.context_length) + 1
    of_tokens = 4 * entries + GIVEN + 1 + (4 + T_FIELDS + 1 + 3 + 2 + 2) * tokens
    of_rows = rows * (2 + S_FIELDS + W_FIELDS + window + 2 * table)
    of_edited = rows * (1 + window + PENALTY_FIELDS)
    of_history = 2 * (tokens + limits.context_length)
    of_edits = 3 * MAX_BIASES + B_FIELDS * MAX_STOP_TOKENS
    of_words = MAX_BAD_WORDS * (WORD_TOKENS + MAX_BAD_WORD_TOKENS)
    of_repeats = R_BREAKERS + MAX_DRY_BREAKERS + DRY_FIELDS + XTC_FIELDS + settings
    return of_tokens + of_rows + of_edited + of_history + rows * (of_edits + of_words + of_repeats)


def on_host(step: StagedStep, flat: npt.NDArray[np.int64]) -> Parts:
    """The parts of the step's buffer, to be filled. Raises nothing."""
    found: dict[str, npt.NDArray[Any]] = {}
    at = 0
    for name, shape in shapes(step).items():
        count = words = prod(shape)
        if name in PACKED:
            each = np.dtype(PACKED[name])
            words = _words(name, count)
            found[name] = flat[at : at + words].view(each)[:count]
        else:
            part = flat[at : at + words]
            found[name] = (part.view(np.float64) if name in FLOATS else part).reshape(shape)
        at += words
    return found


def used(step: StagedStep) -> int:
    """Words of all parts. Raises nothing."""
    return sum(_words(name, prod(shape)) for name, shape in shapes(step).items())


def on_device(step: StagedStep, flat: Tensor) -> Uploaded:
    """The same parts of the copy `flat[L]`: views. Raises nothing."""
    all_shapes = shapes(step)
    words = [_words(name, prod(shape)) for name, shape in all_shapes.items()]
    parts = Uploaded(zip(all_shapes, flat.split_with_sizes(words), strict=True))
    for name, shape in all_shapes.items():
        if len(shape) > 1:
            parts[name] = parts[name].view(shape)
    for name in FLOATS:
        parts[name] = parts[name].view(torch.float64)
    for name, dtype in _TORCH.items():
        parts[name] = parts[name].view(dtype)[: all_shapes[name][0]]
    return parts


def _words(name: str, count: int) -> int:
    if name not in PACKED:
        return count
    return -(-count * np.dtype(PACKED[name]).itemsize // 8)
