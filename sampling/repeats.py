"""Tokens that would repeat what was written before, at every window position of a draft window.

DRY and no-repeat-n-gram ask the same of a text: before which of its tokens stand the tokens that
now end it, and how many of them? That is found once for both, on the device, from the row's history
and the drafts before each window position, so no draft has to be settled first.

Sizes: S rows, W = k + 1 window positions, V tokens, C places of the history, P = C + k places of
the text with the drafts behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_NOTHING = -2
"""Stands where a text has no token; equals no token and no padding."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Where the end of each text stands earlier.

    text: `[S, P]` int64: history, then the drafts that are tokens.
    lengths: `[S, W, P]` int64: how many tokens right before a place equal those before the window
        position; 0 for places that are not before it.
    ends: `[S, W]` int64: the place of the last token before each window position.
    longest: lengths are no more than this, at least 1.
    """

    text: Tensor
    lengths: Tensor
    ends: Tensor
    longest: int


def find_matches(
    drafts: Tensor, history: Tensor, window_start: Tensor, vocab: int, longest: int
) -> Matches:
    """What stands before each token of the text, compared with what ends it.

    Matches are followed for `longest` tokens, at least 1. A draft at or after the first that is no
    token has no influence, nor has anything in `history` after `window_start`. Time is
    O(S P (longest + k)).

    Args:
        drafts: `[S, k]` int64, -1 where there is none.
        history: `[S, C]` int: each row's tokens from position 0.
        window_start: `[S]` int64: position of the last token in `history` that counts.
        vocab: tokens of the vocabulary.
        longest: tokens that a match is followed for.
    """
    k = drafts.shape[1]
    text = _text(drafts, history, window_start, vocab)
    places = text.shape[1]
    place = torch.arange(places, device=text.device)
    # running[s, e]: how many tokens that end at e are those that end at the token looked at.
    running = torch.zeros_like(text)
    found: list[Tensor] = []
    for step in range(longest + k):
        at = window_start[:, None] + (step + 1 - longest)
        token = text.gather(1, at.clamp(0, places - 1))
        equal = (text == token) & (at >= 0) & (token >= 0)
        running = (F.pad(running[:, :-1], (1, 0)) + 1) * equal
        if step + 1 >= longest:
            before = F.pad(running[:, :-1], (1, 0)).clamp(max=longest)
            found.append(before * (place <= at))
    ends = window_start[:, None] + torch.arange(k + 1, device=text.device)
    return Matches(text, torch.stack(found, dim=1), ends, longest)


def _text(drafts: Tensor, history: Tensor, window_start: Tensor, vocab: int) -> Tensor:
    """`[S, P]` int64: the tokens of each row by place, with its drafts behind `window_start[S]`."""
    k = drafts.shape[1]
    real = ((drafts >= 0) & (drafts < vocab)).cumprod(dim=1).bool()
    behind = F.pad(torch.where(real, drafts, _NOTHING), (0, 1), value=_NOTHING)  # [S, k + 1]
    past = F.pad(history.to(torch.int64), (0, k), value=_NOTHING)
    index = torch.arange(past.shape[1], device=history.device) - window_start[:, None] - 1
    return torch.where(index < 0, past, behind.gather(1, index.clamp(0, k)))


def ban_ngrams(logits: Tensor, matches: Matches, size: Tensor) -> Tensor:
    """Logits `[S, W, V]` with -inf at each token that would complete an n-gram of the text again.

    `logits[S, W, V]`; `matches` of n − 1 tokens at least; `size[S]` int64: the n of each row, 0 is
    off. With n = 1 no token of the text may come again. The meaning is that of `transformers`'
    `no_repeat_ngram_size`.
    """
    n = size[:, None, None]
    place = torch.arange(matches.text.shape[1], device=size.device)
    before = (matches.text >= 0)[:, None] & (place <= matches.ends[..., None])
    completes = before & (n > 0) & (matches.lengths >= n - 1)
    taken = torch.where(completes, float("inf"), 0.0).to(logits.dtype)
    return logits - _at_followers(taken, matches, logits.shape[2])


def apply_dry(
    logits: Tensor,
    matches: Matches,
    multiplier: Tensor,
    base: Tensor,
    allowed_length: Tensor,
    last_n: Tensor,
    breakers: Tensor,
) -> Tensor:
    """Logits `[S, W, V]` less what DRY takes off tokens that would go on with a repetition.

    "Don't repeat yourself" (Weidmann 2024, text-generation-webui, pull request 5677): where the
    last n tokens stand earlier too, the token that followed there loses multiplier base^(n −
    allowed_length), if n is at least `allowed_length`; of several places the longest n counts. A
    breaker ends what is compared, and is never made less likely itself. n is no more than
    `matches.longest`. A row whose multiplier is 0 keeps its bits.

    Powers are products of single multiplications, which are rounded in one way on every device.

    Args:
        logits: `[S, W, V]`.
        matches: of as many tokens as n may come to.
        multiplier: `[S]` float; 0 is off.
        base: `[S]` float, at least 1.
        allowed_length: `[S]` int64, at least 1.
        last_n: `[S]` int64: only so many tokens at the end of the text are looked at; below 0: all.
        breakers: `[S, B]` int64: tokens that break sequences, -1 where there is none.
    """
    _, width, vocab = logits.shape
    first = torch.where(last_n[:, None] < 0, 0, matches.ends + 1 - last_n[:, None]).clamp_min(0)
    place = torch.arange(matches.text.shape[1], device=logits.device)
    lengths = torch.minimum(matches.lengths, _unbroken(matches, breakers)[..., None])
    lengths = torch.minimum(lengths, place - first[..., None]).clamp_min(0)
    penalty = _penalties(multiplier, base, allowed_length, matches.longest).to(logits.dtype)
    taken = penalty.gather(1, lengths.flatten(1)).view_as(lengths)
    taken = _at_followers(taken, matches, vocab)
    # Padding takes the least of what is there and infinity, which changes nothing.
    known = (breakers >= 0) & (breakers < vocab)
    spared = torch.where(known, 0.0, float("inf")).to(taken.dtype)
    index = torch.where(known, breakers, 0)
    index, spared = (each[:, None].expand(-1, width, -1) for each in (index, spared))
    return logits - taken.scatter_reduce_(2, index, spared, "amin")


def _penalties(multiplier: Tensor, base: Tensor, allowed_length: Tensor, longest: int) -> Tensor:
    """`[S, longest + 1]` float64: what each length of a match takes off."""
    length = torch.arange(longest + 1, device=base.device)
    exponent = length - allowed_length[:, None]
    power = torch.ones_like(exponent, dtype=torch.float64)
    factor = base[:, None].to(torch.float64)
    for bit in range(longest.bit_length()):
        power = torch.where((exponent >> bit) & 1 > 0, power * factor, power)
        factor = factor * factor
    return torch.where(exponent >= 0, power * multiplier[:, None], 0.0)


def _unbroken(matches: Matches, breakers: Tensor) -> Tensor:
    """`[S, W]`: tokens before each window position, back to the last of `breakers[S, B]`."""
    back = torch.arange(matches.longest, device=breakers.device)
    last = matches.text.shape[1] - 1
    places = (matches.ends[..., None] - back).clamp(0, last)  # [S, W, longest]
    tokens = matches.text.gather(1, places.flatten(1)).view_as(places)
    breaks = (tokens[..., None] == breakers[:, None, None]).any(dim=-1)
    return (~breaks).to(torch.int64).cumprod(dim=-1).sum(dim=-1)


def _at_followers(taken: Tensor, matches: Matches, vocab: int) -> Tensor:
    """`[S, W, V]`: the most that `taken[S, W, P]`, 0 or more, takes off the token at any place."""
    rows, width, places = taken.shape
    place = torch.arange(places, device=taken.device)
    # What takes nothing is spread over the tokens: it must not queue at one of them.
    index = torch.where(taken > 0, matches.text.clamp_min(0)[:, None], place % vocab)
    result = taken.new_zeros(rows, width, vocab)
    return result.scatter_reduce_(2, index, taken, "amax")
