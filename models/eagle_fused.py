"""A pass of an EAGLE head where kernels run: what stands between its products is a launch each.

The network's own code (`eagle_network.py`) stays the definition: the head is tried with both when
it is loaded, and runs by its own code where they differ.

Shapes: T tokens, L of them asked for, H width of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backends.kernels import current
from .attention import AttentionBatch
from .eagle_network import EagleLayer, EagleNetwork
from .fused_parts import FusedAttention, FusedMlp, add_norm, mlp_of, norm_of
from .kernels.forms import Angles, Norm
from .kernels.reference import How


@dataclass(frozen=True)
class _Layer:
    """What one layer of the head is made of."""

    entry: Norm | None  # of what enters, or of the embeddings
    hidden: Norm | None  # of what enters, where its norm stands beside that of the embeddings
    keeps_normed: bool  # the residual is the normed one
    attention: FusedAttention
    after: Norm
    mlp: FusedMlp


@dataclass(frozen=True)
class FusedHead:
    """The passes of a head by kernels."""

    network: EagleNetwork
    embedding: Tensor  # [V, H]
    angles: Tensor  # [C, 2, D] cosines and sines of every position
    layers: tuple[_Layer, ...]
    last: Norm | None  # before its own output head
    places: Tensor | None  # [V] where that has a token; None: it has all, in order

    @staticmethod
    def of(
        network: EagleNetwork,
        embedding: Tensor,
        angles: Tensor,
        draft_ids: Tensor | None,
        vocab_size: int,
    ) -> FusedHead | None:
        """None for a head that has a part of no known form.

        `embedding[V, H]`, `angles[C, 2, D]`, `draft_ids[draft vocabulary]` as in `EagleHead`.
        """
        like = embedding[:1]
        eagle3 = network.config.style == "eagle3"
        layers = [_layer(layer, like) for layer in network.layers]  # type: ignore[arg-type]
        last = norm_of(network.norm, like) if eagle3 else None
        if any(layer is None for layer in layers) or (eagle3 and last is None):
            return None
        known = tuple(layer for layer in layers if layer is not None)
        places = None
        if draft_ids is not None:
            columns = torch.arange(len(draft_ids), device=draft_ids.device)
            places = columns.new_full((vocab_size,), -1).index_copy_(0, draft_ids, columns)
        return FusedHead(network, embedding, angles, known, last, places)

    def __call__(
        self, ids: Tensor, hidden: Tensor, batch: AttentionBatch, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states `[L, H]`, and what the output head reads of them, `[L, H]`.

        `ids[T]`, `hidden[T, H]` and `rows[L]` as for `EagleHead.forward`.
        """
        cos, sin = self.angles.unbind(1)
        angles = Angles(cos, sin, batch.positions)
        x, addend = hidden, None
        if self.network.config.style == "eagle":
            x = self._joined(ids, hidden, batch)
        for layer in self.layers:
            seen, residual = self._entered(layer, x, addend, ids, batch)
            mixed = layer.attention(seen, angles, batch)
            x, normed = add_norm(residual, mixed, layer.after)
            addend = layer.mlp(normed)
        if self.last is not None:
            return add_norm(x, addend, self.last, index=rows)
        x = x if addend is None else x + addend
        x = x if rows is None else x.index_select(0, rows)
        return x, x

    def spread(self, logits: Tensor) -> Tensor:
        """`[L, V]` of the head's own `logits[L, draft vocabulary]`."""
        from .kernels import spread as kernel

        assert self.places is not None, "the head has logits of all tokens"
        with current(logits.device):
            return kernel.spread(logits, self.places)

    def _joined(self, ids: Tensor, hidden: Tensor, batch: AttentionBatch) -> Tensor:
        """What enters the first layer of the first style, `[T, H]`."""
        if batch.masked:
            masked = batch.positions < 0
            ids, hidden = ids.masked_fill(masked, 0), hidden.masked_fill(masked[:, None], 0)
        joined: Tensor = self.network.fc(torch.cat([F.embedding(ids, self.embedding), hidden], -1))
        return joined

    def _entered(
        self, layer: _Layer, x: Tensor, addend: Tensor | None, ids: Tensor, batch: AttentionBatch
    ) -> tuple[Tensor, Tensor]:
        """What the attention sees, `[T, E]`, and the residual `[T, H]`."""
        if layer.entry is None:
            return x, x
        if layer.hidden is None:
            x, normed = add_norm(x, addend, layer.entry)
            return normed, x
        x = x if addend is None else x + addend
        width = x.shape[1]
        seen = x.new_empty(len(x), 2 * width)
        masked: dict[str, Any] = {"live": batch.positions} if batch.masked else {}
        add_norm(self.embedding, None, layer.entry, index=ids, out=seen[:, :width], **masked)
        x, normed = add_norm(x, None, layer.hidden, out=seen[:, width:], **masked)
        return seen, normed if layer.keeps_normed else x


def _layer(layer: EagleLayer, like: Tensor) -> _Layer | None:
    entry, hidden = layer.input_layernorm, layer.hidden_norm
    of_entry = None if entry is None else norm_of(entry, like)
    of_hidden = None if hidden is None else norm_of(hidden, like)
    after, mlp = norm_of(layer.post_attention_layernorm, like), mlp_of(layer.mlp, like)
    unknown = (entry is not None and of_entry is None) or (hidden is not None and of_hidden is None)
    if unknown or after is None or mlp is None:
        return None
    part = layer.self_attn
    how = How(part.head_dim**-0.5, None, None, None)
    attention = FusedAttention(part, part.head_dim, how)
    return _Layer(of_entry, of_hidden, layer.norm_before_residual, attention, after, mlp)
