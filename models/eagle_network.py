"""What an EAGLE head computes: the layers of the two published styles, and nothing of caches.

EAGLE (arXiv:2401.15077): the embedding of the next token and the target's last hidden state go
through one linear map and Llama layers, of which the first has no norm before its attention. The
result is a guess of the target's next hidden state, so the target's own output head reads it.

EAGLE-3 (arXiv:2503.01840): hidden states of several layers of the target are fused by one linear
map. In the one layer, queries, keys and values see the embedding of the next token beside that
fused state, each after a norm of its own, and the fused state is the residual. The head has a norm
and an output head of its own, often over part of the vocabulary.

Attention is passed in, so that inference (paged, `eagle.py`) and training share the rest.

Shapes: B sequences, T tokens, H width of the head, F width of the target's features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding

from .paged_cache import LayerShape

Style = Literal["eagle", "eagle3"]

Attend = Callable[..., Tensor]
"""From (module with `layer_idx`, query `[B, heads, T, D]`, key and value `[B, kv_heads, T, D]`) to
`[B, T, heads, D]`. Positions are already in the query and the key. By keyword, `scaling`,
`sliding_window` and `softcap` of layers that are not Llama's."""


@dataclass(frozen=True)
class EagleConfig:
    """The shape of a head. `llama` gives widths, heads, rope and epsilon of its layers."""

    style: Style
    llama: LlamaConfig
    feature_size: int  # F
    feature_layers: tuple[int, ...] | None = None  # whose inputs F is made of; None: last hidden
    draft_vocab_size: int | None = None  # rows of its own output head, which only "eagle3" has
    own_embedding: bool = False  # its checkpoint has one, else the target's is used
    biased: frozenset[str] = frozenset()  # names of linear maps that have a bias
    norm_before_residual: bool = False  # "eagle3": the residual is the normed fused state

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.llama.hidden_size)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        head_dim: Any = self.llama.head_dim
        return int(head_dim)

    @property
    def context_length(self) -> int:
        """Positions the head was made for."""
        return int(self.llama.max_position_embeddings)

    @property
    def shares_output(self) -> bool:
        """Whether the target's output head reads its hidden states."""
        return self.style == "eagle"


class RMSNorm(nn.Module):
    """Llama's norm, but exact in float64 models; in half precision the mean is float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """`x[..., H]` scaled to a mean square of 1, times the weights: `[..., H]`."""
        if x.dtype in (torch.float32, torch.float64):
            return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
        exact = x.float()
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * (exact * scale).to(x.dtype)


class EagleAttention(nn.Module):
    """Llama attention whose input may be wider than the head (EAGLE-3 concatenates two)."""

    def __init__(self, config: EagleConfig, layer_idx: int, inputs: int) -> None:
        super().__init__()
        llama: Any = config.llama
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim

        def linear(name: str, inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=name in config.biased)

        queries = llama.num_attention_heads * self.head_dim
        keys = llama.num_key_value_heads * self.head_dim
        self.q_proj = linear("q_proj", inputs, queries)
        self.k_proj = linear("k_proj", inputs, keys)
        self.v_proj = linear("v_proj", inputs, keys)
        self.o_proj = linear("o_proj", queries, config.hidden_size)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """`[B, T, H]` of `x[B, T, E]`, `angles[B, T, D]` twice: cosines, sines. E is H or 2 · H."""
        heads = (*x.shape[:2], -1, self.head_dim)
        query, key, value = (
            project(x).view(heads).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _turned(query, key, angles)
        mixed: Tensor = self.o_proj(attend(self, query, key, value).flatten(2))
        return mixed


def _turned(query: Tensor, key: Tensor, angles: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Rotary positions on both at once: in a small head each operation saved is felt."""
    cos, sin = (angle.unsqueeze(1) for angle in angles)
    both = torch.cat([query, key], dim=1)
    left, right = both.chunk(2, dim=-1)
    turned = both * cos + torch.cat([-right, left], dim=-1) * sin
    heads = query.shape[1]
    return [turned[:, :heads], turned[:, heads:]]


class EagleLayer(nn.Module):
    """A Llama layer in one of three forms: first of EAGLE, a later one of EAGLE, EAGLE-3's."""

    def __init__(self, config: EagleConfig, layer_idx: int) -> None:
        super().__init__()
        size, epsilon = config.hidden_size, config.llama.rms_norm_eps
        wide = config.style == "eagle3"
        self.norm_before_residual = config.norm_before_residual
        self.self_attn = EagleAttention(config, layer_idx, 2 * size if wide else size)
        mlp: Any = LlamaMLP
        self.mlp = mlp(config.llama)
        self.hidden_norm = RMSNorm(size, epsilon) if wide else None
        self.input_layernorm = RMSNorm(size, epsilon) if wide or layer_idx > 0 else None
        self.post_attention_layernorm = RMSNorm(size, epsilon)

    def forward(
        self, x: Tensor, embeddings: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """`[B, T, H]` of `x[B, T, H]`, `embeddings[B, T, H]` and `angles[B, T, D]` (both).

        Only EAGLE-3's layer reads the embeddings.
        """
        seen = residual = x
        if self.hidden_norm is not None and self.input_layernorm is not None:
            normed = self.hidden_norm(x)
            seen = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
            residual = normed if self.norm_before_residual else x
        elif self.input_layernorm is not None:
            seen = self.input_layernorm(x)
        x = residual + self.self_attn(seen, angles, attend)
        mixed: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + mixed


class EagleNetwork(nn.Module):
    """The head without cache and vocabulary map; its parameters are named as in checkpoints.

    The target's embedding, and for "eagle" its output head, are given where they are needed:
    they are not the head's parameters.
    """

    fusible = True
    """Kernels can run its layers (`eagle_fused.py`)."""

    first_layer = 0
    """The number of its first layer, in its cache."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        size, llama = config.hidden_size, config.llama
        eagle3 = config.style == "eagle3"
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(llama.vocab_size, size)
        inputs = config.feature_size if eagle3 else size + config.feature_size
        self.fc = nn.Linear(inputs, size, bias="fc" in config.biased)
        self.layers = nn.ModuleList(
            EagleLayer(config, layer_idx) for layer_idx in range(llama.num_hidden_layers)
        )
        if eagle3:
            assert config.draft_vocab_size is not None, "an EAGLE-3 head has its own output head"
            self.norm = RMSNorm(size, llama.rms_norm_eps)
            self.lm_head = nn.Linear(size, config.draft_vocab_size, bias="lm_head" in config.biased)
        self.rotary_emb = LlamaRotaryEmbedding(llama)

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Of its cache."""
        llama, width = self.config.llama, self.config.head_dim
        heads: Any = llama.num_key_value_heads
        return (LayerShape(heads, width, width),) * int(llama.num_hidden_layers)

    def fuse(self, features: Tensor) -> Tensor:
        """From the target's `features[..., F]` to what `forward` takes as `hidden`.

        That is `[..., H]` in EAGLE-3, and the features themselves in EAGLE.
        """
        if self.config.style == "eagle":
            return features
        fused: Tensor = self.fc(features)
        return fused

    def angles(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[B, T, D]` of the rope at `positions[B, T]`, typed as `like[...]`."""
        found: tuple[Tensor, Tensor] = self.rotary_emb(like, positions)
        return found

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        angles: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> Tensor:
        """New hidden states `[B, T, H]` of `embeddings[B, T, H]`, which are of the next tokens.

        They are what the next pass takes as `hidden[B, T, H]`, and what `read_out` (EAGLE-3) or the
        target's output head (EAGLE) makes logits of. `angles[B, T, D]`: cosines and sines at the
        tokens' positions.
        """
        x = hidden
        if self.config.style == "eagle":
            x = self.fc(torch.cat([embeddings, hidden], dim=-1))
        for layer in self.layers:
            x = layer(x, embeddings, angles, attend=attend)
        return x

    def read_out(self, hidden: Tensor) -> Tensor:
        """EAGLE-3's own logits `[..., draft vocabulary]` of `hidden[..., H]`."""
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits
