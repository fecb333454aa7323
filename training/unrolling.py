"""A head over whole sequences, fed its own outputs, and what the target shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from stepweave.models.eagle_network import EagleNetwork
from stepweave.models.mtp_network import MtpNetwork


class Unrolled:
    """Causal attention of a head that is fed its own outputs, for all starting points at once.

    At step j, query t stands at position t + j. It sees the keys of step 0 at positions up to t,
    and of every later step the one key of its own chain.
    """

    def __init__(self) -> None:
        self.seen: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **asked: Any
    ) -> Tensor:
        layer = module.layer_idx
        assert isinstance(layer, int)
        steps = self.seen.setdefault(layer, [])
        steps.append((key, value))
        rows, heads, length, width = query.shape
        query = query.view(rows, key.shape[1], -1, length, width) * width**-0.5
        (first_key, first_value), *later = [
            (k[:, :, None, :length], v[:, :, None, :length]) for k, v in steps
        ]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = [(query @ first_key.transpose(-1, -2)).masked_fill(future, -torch.inf)]
        scores += [(query * k).sum(-1, keepdim=True) for k, _ in later]
        weights = torch.cat(scores, dim=-1).softmax(-1)
        out = weights[..., :length] @ first_value
        for step, (_, v) in enumerate(later):
            out = out + weights[..., length + step, None] * v
        return out.view(rows, heads, length, width).transpose(1, 2)


def unroll(
    network: EagleNetwork | MtpNetwork, embedding: Tensor, ids: Tensor, features: Tensor, steps: int
) -> Iterator[Tensor]:
    """Hidden states of each step: of step j, `[row, start, H]` for starts 0 … T - 2 - j.

    `ids[row, T]`, `features[row, T, F]`. The state of step j at start t predicts token t + 2 + j;
    the tokens between are those of `ids`, as if every draft before had been right.
    """
    hidden, attend = network.fuse(features), Unrolled()
    for step in range(min(steps, ids.shape[1] - 1)):
        starts = ids.shape[1] - 1 - step
        following = functional.embedding(ids[:, 1 + step :], embedding)
        positions = (torch.arange(starts) + step)[None]
        angles = network.angles(hidden, positions)
        hidden = network(following, hidden[:, :starts], angles, attend)
        yield hidden


@contextmanager
def streams(model: LlamaForCausalLM, layers: tuple[int, ...] | None) -> Iterator[list[Tensor]]:
    """Collects, during a pass, what enters these layers; the last number is the final norm."""
    taken: dict[int, Tensor] = {}
    found: list[Tensor] = []
    parts = [*model.model.layers, model.model.norm]

    def hook(index: int) -> torch.utils.hooks.RemovableHandle:
        def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            taken[index] = args[0]

        part: nn.Module = parts[index]
        return part.register_forward_pre_hook(keep)

    handles = [hook(index) for index in layers or ()]
    try:
        yield found
        found.extend(taken[index] for index in layers or ())
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def read(
    model: LlamaForCausalLM, ids: Tensor, layers: tuple[int, ...] | None
) -> tuple[Tensor, Tensor]:
    """What a head gets to see `[row, T, F]`, and the last hidden states `[row, T, H]`."""
    with streams(model, layers) as found:
        last: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return (torch.cat(found, dim=-1) if found else last), last


def embedding_of(target: LlamaForCausalLM) -> Tensor:
    embedding: Tensor = target.model.embed_tokens.weight
    return embedding
