"""Reading an EAGLE head's folder: from names and shapes in a file to a network that fits a target.

Two layouts are in use; both are a `config.json` like Llama's beside safetensors.

* EAGLE: `fc`, `layers.N.*` without `layers.0.input_layernorm`, optionally `embed_tokens`.
* EAGLE-3: `fc`, one layer called `midlayer.*` (or `layers.0.*`), `norm`, `lm_head`, optionally
  `embed_tokens`. If `lm_head` covers part of the vocabulary, `d2t` says which: row i stands for
  token i + d2t[i]; the mask `t2d` says the same from the other side.

Whatever does not fit the target is refused by name: a head of another model of equal shape would
only draft badly, and everything else is a mistake that should not wait for the first request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from .causal_lm import CausalLM
from .eagle_network import EagleConfig, EagleNetwork, Style
from .errors import ModelError, UnsupportedModel
from .head_files import read_files, require_names, require_numbers
from .source import EMBEDDED_EAGLE

_MODEL_TYPES = {"llama", "qwen2", "mistral", "mixtral"}  # heads published so have Llama's layers
_MOVING_ROPE = {"dynamic", "longrope"}
_BY_AXIS = {"mrope_section", "mrope_interleaved"}
_IDS = "eagle_aux_hidden_state_layer_ids"
_ONLY_EAGLE3 = ("midlayer.", "d2t", "t2d", "layers.0.hidden_norm.")


@dataclass(frozen=True)
class Checkpoint:
    """A folder's content, with the layer's two names made one."""

    name: str  # of the folder or on the hub, for messages
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]  # [...] as the file has them

    @property
    def style(self) -> Style:
        """What only EAGLE-3 has gives it away: configurations of both say "llama"."""
        return "eagle3" if any(key.startswith(_ONLY_EAGLE3) for key in self.weights) else "eagle"


def read(name_or_path: str | Path) -> Checkpoint:
    """Read a folder, an embedded name or a hub name; local files first.

    Raises `ModelNotFound`, `UnsupportedModel` if there are no safetensors, and `ModelError` if they
    cannot be read.
    """
    # Some old files store what is computed.
    files = read_files(name_or_path, EMBEDDED_EAGLE, "an EAGLE head", _is_weight)
    renamed = {
        key.removeprefix("model.").replace("midlayer.", "layers.0.", 1): tensor
        for key, tensor in files.weights.items()
    }
    if len(renamed) < len(files.weights):
        raise ModelError(
            f"{files.name}: it has both midlayer.* and layers.0.*, of which a head has only one"
        )
    return Checkpoint(files.name, files.config, renamed)


def _is_weight(key: str) -> bool:
    return not key.endswith("rotary_emb.inv_freq")


def build(checkpoint: Checkpoint, target: CausalLM) -> tuple[EagleNetwork, Tensor | None]:
    """The network with its weights, in the file's precision, and the target's token of each draft
    token, `[draft vocabulary]`.

    The second is None if the head's vocabulary is the target's. Raises `ModelError`, naming the
    key, for whatever does not fit.
    """
    name, weights = checkpoint.name, dict(checkpoint.weights)
    d2t, t2d = weights.pop("d2t", None), weights.pop("t2d", None)
    config = _config(checkpoint, target)
    draft_ids = None
    if config.style == "eagle3":
        draft_ids = _draft_ids(name, d2t, t2d, config, target)
    with torch.device("meta"):
        network = EagleNetwork(config)
    expected = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    require_names(name, f"an {config.style} head of this configuration", weights, expected)
    for key, shape in expected.items():
        if tuple(weights[key].shape) != shape:
            raise ModelError(
                f"{name}: {key} is {tuple(weights[key].shape)}; its configuration and "
                f"{target.name} (hidden size {target.hidden_size}, vocabulary "
                f"{target.vocab_size}) ask for {shape}"
            )
    require_numbers(name, weights)
    network.load_state_dict(weights, assign=True)
    network.rotary_emb = LlamaRotaryEmbedding(config.llama)  # computed, so not in the file
    return network, draft_ids


def _config(checkpoint: Checkpoint, target: CausalLM) -> EagleConfig:
    name, stated, weights = checkpoint.name, dict(checkpoint.config), checkpoint.weights
    kind = stated.pop("model_type", "llama")
    if kind not in _MODEL_TYPES:
        raise UnsupportedModel(
            f"{name}: model_type {kind!r} is not one whose EAGLE heads have Llama's layers "
            f"({', '.join(sorted(_MODEL_TYPES))})"
        )
    for field in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if not isinstance(stated.get(field), int):
            raise ModelError(
                f"{name}: config.json says {field} {stated.get(field)!r}; want a number"
            )
    stated.setdefault("num_hidden_layers", 1)
    for field in ("rope_parameters", "rope_scaling"):
        if isinstance(stated.get(field), Mapping):
            stated[field] = _along_the_text(stated[field])
    biased = frozenset(key.split(".")[-2] for key in weights if key.endswith(".bias"))
    mlp = {"gate_proj", "up_proj", "down_proj"}
    llama = LlamaConfig.from_dict({**stated, "mlp_bias": bool(mlp & biased)})
    if llama.max_position_embeddings < 1:
        raise ModelError(f"{name}: max_position_embeddings is {llama.max_position_embeddings}")
    rope: Any = llama.rope_parameters
    if rope["rope_type"] in _MOVING_ROPE:
        raise UnsupportedModel(
            f"{name}: its rotary embedding is of type {rope['rope_type']!r}, whose angles depend "
            "on the longest request of the batch"
        )
    if llama.vocab_size != target.vocab_size:
        raise ModelError(
            f"{name}: vocab_size is {llama.vocab_size}, that of {target.name} is "
            f"{target.vocab_size}: a head serves the target it was made for; set "
            "nodes.draft.model to a head of this model, or nodes.draft to null"
        )
    own_embedding = "embed_tokens.weight" in weights
    if llama.hidden_size != target.hidden_size and (
        checkpoint.style == "eagle" or not own_embedding
    ):
        raise ModelError(
            f"{name}: hidden_size is {llama.hidden_size}, that of {target.name} is "
            f"{target.hidden_size}, whose embedding or output head it would use; set "
            "nodes.draft.model to a head of this model, or nodes.draft to null"
        )
    if checkpoint.style == "eagle":
        return EagleConfig(
            "eagle", llama, target.hidden_size, own_embedding=own_embedding, biased=biased
        )
    if llama.num_hidden_layers != 1:
        raise UnsupportedModel(
            f"{name}: an EAGLE-3 head of {llama.num_hidden_layers} layers; only one is known"
        )
    layers = _feature_layers(name, stated, target)
    rows = weights["lm_head.weight"].shape[0] if "lm_head.weight" in weights else 0
    return EagleConfig(
        "eagle3",
        llama,
        target.hidden_size * len(layers),
        layers,
        draft_vocab_size=int(stated.get("draft_vocab_size") or rows or target.vocab_size),
        own_embedding=own_embedding,
        biased=biased,
        norm_before_residual=bool(stated.get("norm_before_residual", False)),
    )


def _along_the_text(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The rope of a head whose target reads images, as it is for text: all axes are one.

    A head has one position for each token, which is its place in the text.
    """
    kept = {key: value for key, value in rope.items() if key not in _BY_AXIS}
    return {key: "default" if value == "mrope" else value for key, value in kept.items()}


def _feature_layers(name: str, stated: Mapping[str, Any], target: CausalLM) -> tuple[int, ...]:
    nested = stated.get("eagle_config")
    ids = nested.get(_IDS) if isinstance(nested, Mapping) else None
    ids = stated.get(_IDS) if ids is None else ids
    last = target.num_layers
    if ids is None:
        ids = [2, last // 2, last - 3]
        if not 2 <= ids[1] <= ids[2]:
            raise ModelError(
                f"{name}: config.json has no {_IDS}, and by custom they are 2, half the layers "
                f"and the last but three; {target.name} has only {last} layers"
            )
    if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
        raise ModelError(f"{name}: {_IDS} is {ids!r}; want a list of layer numbers")
    if not all(0 <= each <= last for each in ids):
        raise ModelError(f"{name}: {_IDS} is {ids}; {target.name} has 0 to {last}")
    return tuple(ids)


def _draft_ids(
    name: str, d2t: Tensor | None, t2d: Tensor | None, config: EagleConfig, target: CausalLM
) -> Tensor | None:
    """The target's token for each row of the head's own output head."""
    size, vocab = config.draft_vocab_size, target.vocab_size
    if d2t is None:
        if size != vocab:
            raise ModelError(
                f"{name}: its output head has {size} tokens of {vocab}, but without d2t nobody "
                "knows which"
            )
        if t2d is not None and not bool(t2d.all()):
            raise ModelError(f"{name}: t2d leaves tokens out, but there is no d2t")
        return None
    if tuple(d2t.shape) != (size,) or d2t.is_floating_point():
        raise ModelError(
            f"{name}: d2t is {d2t.dtype} {tuple(d2t.shape)}; its output head asks for integers "
            f"({size},)"
        )
    ids = d2t.long() + torch.arange(len(d2t))
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ModelError(
            f"{name}: d2t leads to tokens {int(ids.min())} to {int(ids.max())}; {target.name} has "
            f"0 to {vocab - 1}"
        )
    if len(set(ids.tolist())) < len(ids):
        raise ModelError(f"{name}: d2t leads to one token from two")
    if t2d is not None:
        mask = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
        if tuple(t2d.shape) != (vocab,) or not torch.equal(t2d.bool(), mask):
            raise ModelError(
                f"{name}: t2d, {tuple(t2d.shape)}, does not name the tokens that d2t leads to"
            )
    return ids
