"""What a module that predicts further tokens (MTP) computes, and nothing of caches.

Models trained to say more than the next token (DeepSeek-V3, arXiv:2412.19437; GLM-4.5; Qwen3-Next)
come with such a module behind their last layer. The embedding of the next token and the target's
last hidden state go, each through a norm of its own, through one linear map and one decoder layer
of the target's own family. After a norm the result is a guess of the target's next hidden state:
the output head reads it, and the module itself reads it to guess further. The embedding and the
output head are the target's, unless the file has others.

Of several modules each guesses one token further: module i at position t is given what module
i − 1 made of position t (the first: the target's hidden state) and the token at t + i + 1.

Attention is passed in, so that inference (paged, `eagle.py`) and training share the rest.
Shapes: B sequences, T tokens, H width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from .attention import LayerProbe, paged_attention
from .cutting import decoder_layers
from .eagle_network import Attend
from .errors import UnsupportedModel
from .paged_cache import LayerShape
from .rope import rope_types

NAME = "stepweave_given"
_MOVING_ROPE = {"dynamic", "longrope"}
_BY_LAYER = ("layer_types", "mlp_layer_types")


def left_states(hidden_size: int) -> LayerShape:
    """Room in a cache for the hidden states that a module leaves for the next one: a key of that
    size for each token, and nothing beside it. Raises nothing.
    """
    return LayerShape(1, hidden_size, hidden_size, within=True)


def given_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attend: Attend,
    **asked: Any,
) -> tuple[Tensor, None]:
    """What `attend` makes of `query[B, heads, T, D]`, `key[B, kv_heads, T, D]` and
    `value[B, kv_heads, T, D']`: `[B, T, heads, D']`. `attention_mask[...]` is not used.
    """
    told = {name: asked[name] for name in ("scaling", "sliding_window", "softcap") if name in asked}
    return attend(module, query, key, value, **told), None


@dataclass(frozen=True)
class MtpConfig:
    """The shape of a module: that of a decoder layer of its target."""

    style = "mtp"
    hidden_size: int  # H
    context_length: int
    own_embedding: bool = False  # the file has another than the target's
    own_output: bool = False
    feature_layers: tuple[int, ...] | None = None  # it reads the last hidden state

    @property
    def feature_size(self) -> int:
        """Width of what it reads of the target."""
        return self.hidden_size

    @property
    def shares_output(self) -> bool:
        """Whether the target's output head reads its hidden states."""
        return not self.own_output


class MtpNetwork(nn.Module):
    """The module; its parameters are `enorm`, `hnorm`, `eh_proj`, `layers.0.*` and `norm`.

    `target` is a model of transformers, of whose family the decoder layer is. Raises
    `UnsupportedModel` where one cannot be made.
    """

    fusible = False
    """There are no kernels for it."""

    def __init__(
        self,
        target: PreTrainedModel,
        *,
        own_embedding: bool = False,
        own_output: bool = False,
        context: int | None = None,
        place: int = 0,
    ) -> None:
        """`context`: positions that it was made for, if not those of the target. `place`: how many
        modules come before it.
        """
        super().__init__()
        like = decoder_layers(target)[-1]
        norm_of: Any = type(getattr(like, "input_layernorm", None))
        decoder, self.first_layer = _extended(target, place)
        size, epsilon = int(decoder.hidden_size), float(decoder.rms_norm_eps)
        if norm_of is type(None):
            raise UnsupportedModel(
                f"{type(target).__name__}: a decoder layer without `input_layernorm` is of no "
                "family with modules that predict further tokens"
            )
        self.config = MtpConfig(
            size, context or int(decoder.max_position_embeddings), own_embedding, own_output
        )
        self.enorm, self.hnorm = norm_of(size, eps=epsilon), norm_of(size, eps=epsilon)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        layer_of: Any = type(like)
        self.layers = nn.ModuleList([layer_of(decoder, self.first_layer)])
        self.norm = norm_of(size, eps=epsilon)
        if own_embedding:
            self.embed_tokens = nn.Embedding(decoder.vocab_size, size)
        if own_output:
            self.lm_head = nn.Linear(size, decoder.vocab_size, bias=False)
        self._rotary = (_rotary_of(target),)  # in a tuple: it is the target's, and no part of this

    def fuse(self, features: Tensor) -> Tensor:
        """`[..., H]` for `forward`: the target's `features[..., H]` themselves."""
        return features

    def angles(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[B, T, D]` of the rope at `positions[B, T]`, typed as `like[...]`."""
        found: tuple[Tensor, Tensor] = self._rotary[0](like, positions)
        return found

    @cached_property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Of its cache, learned from one token."""
        probe = LayerProbe()

        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **asked: Any
        ) -> Tensor:
            return paged_attention(module, query, key, value, None, paged=probe, **asked)[0]

        weight = self.eh_proj.weight
        token = weight.new_zeros(1, 1, self.config.hidden_size)
        first = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
        with torch.no_grad():
            self(token, token, self.angles(token, first), attend)
        return tuple(probe.layers.values())

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> Tensor:
        """New hidden states `[B, T, H]` of `embeddings[B, T, H]`, which are of the next tokens.

        They are what the next pass takes as `hidden[B, T, H]`, and what the output head makes
        logits of. `angles[B, T, D]`: cosines and sines at the tokens' positions.
        """
        x = self.eh_proj(torch.cat([self.enorm(embeddings), self.hnorm(hidden)], dim=-1))
        for layer in self.layers:
            left = layer(
                x,
                attention_mask=None,
                position_ids=None,
                position_embeddings=angles,
                attend=attend,
            )
            x = left[0] if isinstance(left, tuple) else left
        guessed: Tensor = self.norm(x)
        return guessed

    def read_out(self, hidden: Tensor) -> Tensor:
        """Logits `[..., V]` of `hidden[..., H]`, by an output head of its own."""
        logits: Tensor = self.lm_head(hidden)
        return logits


def _extended(target: PreTrainedModel, place: int) -> tuple[Any, int]:
    """The configuration of the target's decoder with the layers of the modules up to that of a
    `place`, and the number of this one's.

    A layer learns from its number of what kind it is; those behind the last are of its kind, with
    full attention.
    """
    decoder: Any = copy.deepcopy(target.config.get_text_config(decoder=True))
    if odd := _MOVING_ROPE & set(rope_types(decoder.to_dict())):
        raise UnsupportedModel(
            f"{type(target).__name__}: its rotary embedding is of type {odd.pop()!r}, whose angles "
            "depend on how long a text is"
        )
    count = int(decoder.num_hidden_layers)
    decoder.num_hidden_layers = count + place + 1
    for name in _BY_LAYER:
        kinds = getattr(decoder, name, None)
        if kinds is not None and len(kinds) == count:
            last = "full_attention" if "full_attention" in kinds else kinds[-1]
            setattr(decoder, name, [*kinds, *[last] * (place + 1)])
    AttentionInterface.register(NAME, given_attention)
    decoder._attn_implementation = NAME
    return decoder, count + place


def _rotary_of(target: PreTrainedModel) -> nn.Module:
    decoder: Any = getattr(target, "get_decoder", lambda: target.base_model)()
    found = getattr(decoder, "rotary_emb", None)
    if not isinstance(found, nn.Module):
        raise UnsupportedModel(f"{type(target).__name__}: cannot find its rotary embedding")
    return found
