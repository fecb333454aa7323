"""The best token of each line, or a draw from it, without a number written per token.

A line is divided among programs; each leaves the key of its best token (`keys.py`), and whoever
needs the tokens takes the best of these. A draw is the best of log-probabilities plus noise (the
Gumbel-max trick, Gumbel 1954); its noise never leaves the registers, and is not computed for a tile
that no noise could lift to the first place: closed by a mask or a filter, or too improbable.

Shapes: L lines of logits, M of masks, V tokens, P splits of a line, R rows of as many positions
each, so that line l is position l % width of row l // width. Nothing asks the device for a value.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from ..stand_ins import StandIns
from .checks import check_shapes
from .keys import (
    MOST_SPLITS,
    TILE,
    best_key,
    better,
    checked_masks,
    checked_stand_ins,
    contiguous_lines,
    key_of,
    masked_scores,
    order_of,
    score_of,
    splits_for,
    tokens_of,
)
from .noise import EXACT, LEAST, MOST, gumbel

_FLOOR = tl.constexpr(LEAST - MOST - 0.25)  # below the best by more than noise can make up for


def argmax(logits: Tensor, bits: Tensor | None = None, lines: Tensor | None = None) -> Tensor:
    """`apply_bitmask(logits, bits, lines).argmax(-1)`, `[L]` int64: the first best allowed token.

    `logits[L, V]` float32 or narrower; `bits[M, V / 32]` int32 and `lines[L]` as in
    `structured.bitmask`, None for no mask. As there, a line with no allowed token gives 0, one with
    a NaN the first NaN.
    """
    with current(logits.device):
        return tokens_of(best(logits, bits, lines))


def draw(
    log_probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    greedy: Tensor,
    purpose: int | Tensor,
) -> Tensor:
    """`sampling.draw.draw` of `log_probs[L, V]` float32 or narrower: tokens `[L]` int64.

    `seeds[L]`, `positions[L]`, `greedy[L]`; `purpose[L]`, or one for all.
    """
    with current(log_probs.device):
        return tokens_of(draw_keys(log_probs, seeds, positions, greedy, purpose))


def sample(
    logits: Tensor,
    temperature: Tensor,
    min_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    purpose: int | Tensor,
    bits: Tensor | None = None,
    lines: Tensor | None = None,
) -> Tensor:
    """Tokens `[L]` int64 that `sample_keys` draws from `logits[L, V]`, one position per row.

    `temperature[L]`, `min_p[L]`, `seeds[L]`, `positions[L]`; `purpose[L]`, or one for all;
    `bits[M, V / 32]`, `lines[L]`.
    """
    with current(logits.device):
        return tokens_of(
            sample_keys(logits, bits, lines, temperature, min_p, seeds, positions, purpose)
        )


def best(
    logits: Tensor,
    bits: Tensor | None = None,
    lines: Tensor | None = None,
    stand_ins: StandIns | None = None,
) -> Tensor:
    """Keys `[L, P]` of what `argmax` gives for `logits[L, V]`, `bits[M, V / 32]`, `lines[L]`.

    Of L lines some may have `stand_ins`, which count in their place.
    """
    count, vocab = logits.shape
    logits, splits = contiguous_lines(logits), splits_for(count, vocab, logits.device)
    masks, whose, bits_stride, has_bits, has_lines = checked_masks(bits, lines, logits)
    instead, stands, stand_in_stride, has_stand_ins = checked_stand_ins(stand_ins, logits)
    keys = logits.new_empty(count, splits, dtype=torch.int64)
    _best[(count, splits)](
        logits,
        instead,
        stands,
        masks,
        whose,
        keys,
        vocab,
        splits,
        logits.stride(0),
        stand_in_stride,
        bits_stride,
        HAS_STAND_INS=has_stand_ins,
        HAS_BITS=has_bits,
        HAS_LINES=has_lines,
        TILE=TILE,
    )
    return keys


def draw_keys(
    log_probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    greedy: Tensor,
    purpose: int | Tensor,
    width: int = 1,
) -> Tensor:
    """Keys `[L, P]` of what `draw` gives for `log_probs[L, V]`, where L is R · width.

    `seeds[R]`, `greedy[R]`, `positions[R]` of window position 0; `purpose[R]`, or one for all.
    """
    lines, vocab = log_probs.shape
    log_probs = contiguous_lines(log_probs)
    keys = log_probs.new_empty(lines, splits_for(lines, vocab, log_probs.device), dtype=torch.int64)
    _launch(log_probs, None, None, None, keys, keys, seeds, positions, greedy, purpose, None, width)
    return keys


def sample_keys(
    logits: Tensor,
    bits: Tensor | None,
    lines: Tensor | None,
    temperature: Tensor,
    min_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    purpose: int | Tensor,
    width: int = 1,
    stand_ins: StandIns | None = None,
) -> Tensor:
    """Keys `[L, P]` of a draw straight from `logits[L, V]`: two reads of them, and nothing else.

    What `draw` would give for `filtered_log_probs(…, normalized=False)` of the masked logits,
    without top-k and top-p, which need the tokens in order. `bits[M, V / 32]`, None for no mask,
    and `lines[L]`, None for line by line; `temperature[R]`, 0 for the best token; `min_p[R]`, None
    if no row uses it. `seeds[R]`, `positions[R]` and `purpose[R]` as for `draw_keys`; `stand_ins`
    in the place of some lines, None if all are as they are.
    """
    logits = contiguous_lines(logits)
    first = best(logits, bits, lines, stand_ins)
    keys = torch.empty_like(first)
    # A library logarithm, for the bits of the reference, which takes the same.
    cut = None if min_p is None else min_p.to(torch.float32).log()
    settings = (seeds, positions, temperature, purpose, cut, width)
    _launch(logits, stand_ins, bits, lines, first, keys, *settings)
    return keys


def _launch(
    scores: Tensor,
    stand_ins: StandIns | None,
    bits: Tensor | None,
    lines: Tensor | None,
    first: Tensor,
    keys: Tensor,
    seeds: Tensor,
    positions: Tensor,
    setting: Tensor,
    purpose: int | Tensor,
    log_min_p: Tensor | None,
    width: int,
) -> None:
    count, vocab = scores.shape
    if count % width:
        raise ValueError(f"{count} lines are not rows of {width} positions")
    masks, whose, bits_stride, has_bits, has_lines = checked_masks(bits, lines, scores)
    instead, stands, stand_in_stride, has_stand_ins = checked_stand_ins(stand_ins, scores)
    check_shapes(
        (count // width,),
        seeds=seeds,
        positions=positions,
        setting=setting,
        purpose=purpose,
        log_min_p=log_min_p,
    )
    purposes = purpose if isinstance(purpose, Tensor) else seeds
    _draw[(count, keys.shape[1])](
        scores,
        instead,
        stands,
        masks,
        whose,
        first,
        keys,
        seeds,
        positions,
        purposes,
        setting,
        setting if log_min_p is None else log_min_p,
        vocab,
        keys.shape[1],
        width,
        0 if isinstance(purpose, Tensor) else int(purpose),
        scores.stride(0),
        stand_in_stride,
        bits_stride,
        seeds.stride(0),
        positions.stride(0),
        purposes.stride(0),
        setting.stride(0),
        0 if log_min_p is None else log_min_p.stride(0),
        HAS_STAND_INS=has_stand_ins,
        HAS_BITS=has_bits,
        HAS_LINES=has_lines,
        HAS_PURPOSES=isinstance(purpose, Tensor),
        SCALED=first is not keys,
        HAS_MIN_P=log_min_p is not None,
        TILE=TILE,
        MOST=MOST_SPLITS,
        **EXACT,
    )


# What changes from step to step must not be compiled in: a new kernel takes a second.
@triton.jit(
    do_not_specialize=["splits", "bits_stride"],
    do_not_specialize_on_alignment=["stands", "lines"],
)
def _best(
    logits,
    stand_ins,
    stands,
    bits,
    lines,
    keys,
    vocab,
    splits,
    line_stride,
    stand_in_stride,
    bits_stride,
    HAS_STAND_INS: tl.constexpr,
    HAS_BITS: tl.constexpr,
    HAS_LINES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (line, split): the split s takes the tiles s, s + P, s + 2P …"""
    line = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    top = tl.full([TILE], -(2**31), tl.int32)
    at = tl.zeros([TILE], tl.int32)
    for tile in range(split, tl.cdiv(vocab, TILE), splits):
        token = tile * TILE + tl.arange(0, TILE)
        inside = token < vocab
        score = masked_scores(
            logits,
            stand_ins,
            stands,
            bits,
            lines,
            line,
            token,
            inside,
            line_stride,
            stand_in_stride,
            bits_stride,
            HAS_STAND_INS,
            HAS_BITS,
            HAS_LINES,
        )
        top, at = better(top, at, order_of(score, inside), token)
    tl.store(keys + line * splits + split, tl.max(key_of(top, at), 0))


@triton.jit(
    do_not_specialize=[
        "splits",
        "width",
        "purpose",
        "bits_stride",
        "seed_stride",
        "position_stride",
        "purpose_stride",
        "setting_stride",
        "min_p_stride",
    ],
    do_not_specialize_on_alignment=[
        "stands",
        "lines",
        "seeds",
        "positions",
        "purposes",
        "setting",
        "log_min_p",
    ],
)
def _draw(
    scores,
    stand_ins,
    stands,
    bits,
    lines,
    first,
    keys,
    seeds,
    positions,
    purposes,
    setting,  # SCALED: the temperature; else whether a row is greedy
    log_min_p,
    vocab,
    splits,
    width,
    purpose,
    line_stride,
    stand_in_stride,
    bits_stride,
    seed_stride,
    position_stride,
    purpose_stride,
    setting_stride,
    min_p_stride,
    HAS_STAND_INS: tl.constexpr,
    HAS_BITS: tl.constexpr,
    HAS_LINES: tl.constexpr,
    HAS_PURPOSES: tl.constexpr,
    SCALED: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    TILE: tl.constexpr,
    MOST: tl.constexpr,
):
    """Program (line, split), as in `_best`."""
    line = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    row = line // width
    seed = tl.load(seeds + row * seed_stride).to(tl.int64)
    position = tl.load(positions + row * position_stride).to(tl.int64) + line % width
    why = tl.full([], 0, tl.int64) + purpose
    if HAS_PURPOSES:
        why = tl.load(purposes + row * purpose_stride).to(tl.int64)
    given = tl.load(setting + row * setting_stride)
    if SCALED:
        random = given > 0
        divisor = given.to(tl.float32)
        most = score_of(best_key(first, line, splits, MOST))
    else:
        random = given == 0
    top = tl.full([TILE], -(2**31), tl.int32)
    at = tl.zeros([TILE], tl.int32)
    best_so_far = tl.full([], -(2**63), tl.int64)
    if SCALED and not random:
        best_so_far = tl.load(first + line * splits + split)
    else:
        for tile in range(split, tl.cdiv(vocab, TILE), splits):
            token = tile * TILE + tl.arange(0, TILE)
            inside = token < vocab
            score = masked_scores(
                scores,
                stand_ins,
                stands,
                bits,
                lines,
                line,
                token,
                inside,
                line_stride,
                stand_in_stride,
                bits_stride,
                HAS_STAND_INS,
                HAS_BITS,
                HAS_LINES,
            )
            least = float("-inf")
            if SCALED:
                score = tl.div_rn(score - most, tl.zeros([TILE], tl.float32) + divisor)
                least = _FLOOR
            if HAS_MIN_P:
                cut = tl.load(log_min_p + row * min_p_stride)
                score = tl.where(score < cut, float("-inf"), score)
            lifted = inside & (score > least)
            if random and tl.max(lifted.to(tl.int32), 0) > 0:
                score += gumbel(seed, position, why, tile * TILE, TILE)
            top, at = better(top, at, order_of(score, inside), token)
        best_so_far = tl.max(key_of(top, at), 0)
    tl.store(keys + line * splits + split, best_so_far)
