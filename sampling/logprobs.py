"""Log-probabilities that a request asks to see: those of the model, before any processing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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

    Computed in float32. `tokens` may hold -1 where there is none.
    """
    logits = logits.to(torch.float32) + 0.0  # -0 becomes 0: it must rank as its equal
    log_probs = logits.log_softmax(dim=-1)
    real = tokens >= 0
    index = tokens.clamp_min(0)[:, None]  # a placeholder is never an index
    logprob = log_probs.gather(1, index)[:, 0].masked_fill(~real, float("nan"))
    rank = 1 + (logits > logits.gather(1, index)).sum(dim=-1)
    best = _ranked(logits).topk(top, dim=-1).indices
    return Logprobs(logprob, rank * real, best, log_probs.gather(1, best))


def _ranked(logits: Tensor) -> Tensor:
    """Distinct int64 keys `[L, V]`, ordered as (logit, then lower id).

    `topk` promises nothing about equals, and a stable sort of the vocabulary costs far more.
    """
    vocab = logits.shape[-1]
    bits = logits.view(torch.int32)
    # As integers, floats of one sign are in order; below 0 in the opposite one.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ids = torch.arange(vocab, device=logits.device)
    return ordered.to(torch.int64) * vocab + (vocab - 1 - ids)
