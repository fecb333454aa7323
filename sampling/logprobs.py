"""Log-probabilities that a request asks to see: those of the model, before any processing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .blocks import blocks


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of L tokens. Where there was none (-1): `logprob` NaN, `rank` 0; its `top` still holds.

    logprob: `[L]` float32.
    rank: `[L]` int64: 1 for the best token, and for all that equal it.
    top_tokens: `[L, top]` int64, best first, equals by id.
    top_logprobs: `[L, top]` float32.
    """

    logprob: Tensor
    rank: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor


def token_logprobs(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    """Log-probabilities of `tokens [L]` and of the `top` (0 … V) best under `logits [L, V]`.

    Computed in float32, in blocks of lines. `tokens` may hold -1 where there is none.
    """
    found = [_of_block(logits[part], tokens[part], top) for part in blocks(logits)]
    if len(found) == 1:
        return found[0]
    return Logprobs(
        torch.cat([each.logprob for each in found]),
        torch.cat([each.rank for each in found]),
        torch.cat([each.top_tokens for each in found]),
        torch.cat([each.top_logprobs for each in found]),
    )


def _of_block(logits: Tensor, tokens: Tensor, top: int) -> Logprobs:
    scores = logits.to(torch.float32)
    real = tokens >= 0
    index = tokens.clamp_min(0)[:, None]  # a placeholder is never an index
    rank = 1 + (scores > scores.gather(1, index)).sum(dim=-1)
    best = _best(scores, top)
    log_probs = scores.log_softmax(dim=-1)
    logprob = log_probs.gather(1, index)[:, 0].masked_fill_(~real, float("nan"))
    return Logprobs(logprob + 0.0, rank * real, best, log_probs.gather(1, best) + 0.0)


def _best(scores: Tensor, top: int) -> Tensor:
    """The `top` best of `scores[L, V]`, by score, then by lower id: `[L, top]`.

    `topk` promises nothing about equals, and a stable sort of the vocabulary costs far more. So it
    is given distinct int64 keys in that order.
    """
    lines, vocab = scores.shape
    if top == 0:
        return torch.empty(lines, 0, dtype=torch.int64, device=scores.device)
    ordered = (scores + 0.0).view(torch.int32)  # -0 becomes 0: it must rank as its equal
    # As integers, floats of one sign are in order; below 0 in the opposite one.
    ordered ^= (ordered >> 31).bitwise_and_(0x7FFFFFFF)
    keys = ordered.to(torch.int64).mul_(vocab)
    keys += torch.arange(vocab - 1, -1, -1, device=scores.device)
    return keys.topk(top, dim=-1).indices
