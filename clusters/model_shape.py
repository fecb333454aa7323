"""The shape of a model, and what follows from it: parameters, bytes, operations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..configs.costs import Text
from ..configs.part import Part

Count = Annotated[int, Field(ge=1, le=1 << 24)]
_BYTES = {"float32": 4, "bfloat16": 2, "float8": 1}
_SCALE = 4  # bytes of what multiplies the 8-bit numbers of a token and head
Format = Literal["float32", "bfloat16", "float8"]


class ExpertsConfig(Part):
    """Experts in place of the feed-forward part of a layer."""

    count: Count = Field(description="Experts that a token may be sent to.")
    active: Count = Field(description="Experts that a token is sent to.")
    shared: int = Field(default=0, ge=0, le=1024, description="Experts that every token visits.")
    ffn: Count = Field(description="Inner width of an expert.")
    dense_layers: int = Field(default=0, ge=0, le=1 << 16, description="First layers without.")

    @model_validator(mode="after")
    def _as_many_as_there_are(self) -> ExpertsConfig:
        if self.active > self.count:
            raise ValueError(f"a token is sent to {self.active} experts; there are {self.count}")
        return self


class LatentConfig(Part):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434); widths of one head or token.

    In backticks what the config.json of such a model calls each.
    """

    query: Count | None = Field(
        default=None,
        description="Width of compressed queries, `q_lora_rank`. null: they are not compressed.",
    )
    key_value: Count = Field(description="Width of the latent, `kv_lora_rank`.")
    rope: Count = Field(
        description="Rotated part of a key, shared by all heads, `qk_rope_head_dim`."
    )
    no_rope: Count = Field(description="The other part of a key of one head, `qk_nope_head_dim`.")
    value: Count = Field(description="Width of a value of one head, `v_head_dim`.")
    cache: Literal["latent", "expanded"] = Field(
        default="latent",
        description="What is kept of a token, as `model.kv_cache_form` of a pipeline says it. "
        "latent: the latent and the rotated part, whole on each rank of a tensor group. expanded: "
        "keys and values of each head, of which a rank has those of its heads.",
    )


class ShapeConfig(Part):
    """A causal decoder by its shape."""

    describes: Text = Field(description="The model, as text for readers.")
    layers: Count = Field(description="Decoder layers.")
    hidden: Count = Field(description="Width of a hidden state.")
    heads: Count = Field(description="Query heads.")
    kv_heads: Count = Field(description="Heads of keys and values.")
    head_dim: Count = Field(description="Width of a head.")
    ffn: Count = Field(description="Inner width of the feed-forward part, with three matrices.")
    vocab: Count = Field(description="Tokens that the embedding knows.")
    tied: bool = Field(default=False, description="The head has the weights of the embedding.")
    weights: Format = Field(default="bfloat16", description="Number format of the weights.")
    cache: Format = Field(
        default="bfloat16",
        description="Number format of keys and values. float8: 8 bits, with a scale in 32 bits for "
        "each token and head, as `model.kv_cache_dtype` of a pipeline has them.",
    )
    kernels: int = Field(
        default=13, ge=0, le=4096, description="Kernels of a layer, each with `kernel_us`."
    )
    experts: ExpertsConfig | None = Field(default=None, description="null: every layer is dense.")
    latent: LatentConfig | None = Field(default=None, description="null: grouped attention.")

    @property
    def weight_bytes(self) -> int:
        """Of one parameter."""
        return _BYTES[self.weights]

    @property
    def hidden_bytes(self) -> int:
        """Of the hidden state of one token, in 16 bits or as wide as the weights."""
        return self.hidden * max(2, self.weight_bytes)

    @property
    def attention_parameters(self) -> int:
        """Of one layer.

        Each is multiplied with once for a query token, also those of the map that makes keys and
        values of a latent: it expands the token's own, or is absorbed in its queries and results.
        """
        h, n, latent = self.hidden, self.heads, self.latent
        if latent is None:
            return 2 * h * n * self.head_dim + 2 * h * self.kv_heads * self.head_dim
        key = latent.no_rope + latent.rope
        by_head = (latent.query or h) * key + latent.key_value * (latent.no_rope + latent.value)
        return self._compressing + n * (by_head + latent.value * h)

    @property
    def _compressing(self) -> int:
        """Of one layer: those of the maps that make a latent and compressed queries of a token."""
        if self.latent is None:
            return 0
        compressed = (self.latent.query or 0) + self.latent.key_value + self.latent.rope
        return self.hidden * compressed

    def router_parameters(self, layers: range) -> int:
        """Of all these layers together: those that choose the experts of a token."""
        count = 0 if self.experts is None else self.experts.count
        return self.expert_layers(layers) * self.hidden * count

    def replicated_parameters(self, layers: range) -> int:
        """Of all these layers together: those that every rank of a tensor group holds whole.

        The plans by which transformers divides models (`models/sharding.py`) leave routers alone,
        and what belongs to all heads.
        """
        return len(layers) * self._compressing + self.router_parameters(layers)

    @property
    def dense_parameters(self) -> int:
        """Of the feed-forward part of a layer without experts."""
        return 3 * self.hidden * self.ffn

    @property
    def expert_parameters(self) -> int:
        """Of one expert; 0 without."""
        return 0 if self.experts is None else 3 * self.hidden * self.experts.ffn

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    def expert_layers(self, layers: range) -> int:
        """How many of these layers have experts."""
        if self.experts is None:
            return 0
        return len(range(max(layers.start, self.experts.dense_layers), layers.stop))

    def layer_parameters(self, layers: range) -> int:
        """Of all these layers together."""
        sparse = self.expert_layers(layers)
        found = len(layers) * self.attention_parameters
        found += (len(layers) - sparse) * self.dense_parameters
        if self.experts is not None:
            each = (self.experts.count + self.experts.shared) * self.expert_parameters
            found += sparse * each + self.router_parameters(layers)
        return found

    @property
    def parameters(self) -> int:
        """All of them."""
        embeddings = (1 if self.tied else 2) * self.embedding_parameters
        return self.layer_parameters(range(self.layers)) + embeddings

    @property
    def cache_form(self) -> Literal["latent", "expanded"]:
        """What is kept of a token."""
        return "expanded" if self.latent is None else self.latent.cache

    def cache_bytes(self, tensor: int) -> int:
        """What one token takes in the cache of one layer, on each of `tensor` ranks.

        A latent belongs to all heads, so every rank keeps it whole (`models/sharding.py` leaves the
        map that makes it whole too): more ranks do not make it smaller.
        """
        size, latent = _BYTES[self.cache], self.latent
        scale = _SCALE if size == 1 else 0
        if latent is None:
            return 2 * self.kv_heads // tensor * (self.head_dim * size + scale)
        if latent.cache == "latent":
            return (latent.key_value + latent.rope) * size + scale
        head = (latent.no_rope + latent.rope + latent.value) * size + 2 * scale
        return self.heads // tensor * head

    def attention_operations(self, tensor: int) -> float:
        """Of one query token with one token of its context, in one layer on each rank.

        Each head compares its query with the latent and the rotated part, and adds up latents
        (`models/latent.py`), of prompts too: more arithmetic than with keys and values of a head.
        """
        latent = self.latent
        if latent is None:
            width = 2 * self.head_dim
        elif latent.cache == "latent":
            width = 2 * latent.key_value + latent.rope
        else:
            width = latent.no_rope + latent.rope + latent.value
        return 2.0 * self.heads / tensor * width
