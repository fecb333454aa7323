"""What of a model the paged cache can serve: what is known not to fit is refused by name.

Here stands what an architecture's configuration gives away. The rest is found by trying
(`CausalLM`): attention that is not called, and logits that differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from ..graph.errors import StepweaveError, shortly
from .errors import UnsupportedModel

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_WITH_STATES = {"linear_attention", "conv", "mamba", "hybrid", "attention", "moe", "mlp"}


@contextmanager
def own_code(name: str) -> Iterator[None]:
    """Code of the model's own runs in the block: whatever it raises refuses the model.

    Raises `UnsupportedModel` in its place; an error of ours stays as it is.
    """
    try:
        yield
    except StepweaveError:
        raise
    except Exception as error:  # of any of the library's models, each with its own
        raise UnsupportedModel(
            f"{name} cannot be served: a pass of a few tokens raises {shortly(error)}"
        ) from error


def refuse(model: PreTrainedModel, config: Any, *, keeps_states: bool = False) -> None:
    """Raises `UnsupportedModel` if the architecture needs what a paged cache does not give.

    `keeps_states`: some of its layers keep states, which `recurrent.py` serves.
    """
    name = type(model).__name__
    why = None
    if getattr(model.config, "is_encoder_decoder", False):
        why = "it is an encoder-decoder; only decoders run on the paged cache"
    elif not (keeps_states or getattr(model, "_supports_attention_backend", False)):
        why = "it does not call attention through the attention interface of transformers"
    elif getattr(config, "alibi", False):
        why = "it uses ALiBi, a bias that its own attention adds"
    elif getattr(config, "use_bidirectional_attention", None):
        why = "its attention looks ahead"
    elif odd := set(getattr(config, "layer_types", None) or ()) - (
        _LAYER_TYPES | _WITH_STATES if keeps_states else _LAYER_TYPES
    ):
        why = f"it has layers of type {', '.join(sorted(odd))}"
    elif getattr(config, "max_position_embeddings", None) is None:
        why = "its configuration names no max_position_embeddings, so no context length"
    elif config.max_position_embeddings < 2:
        why = f"max_position_embeddings is {config.max_position_embeddings}: no room for a token"
    if why is not None:
        raise UnsupportedModel(f"{name} cannot be served: {why}")


def plain_experts(model: PreTrainedModel) -> None:
    """Multiply by experts one after another: grouped products are neither invariant nor float64.

    That asks the device which experts were hit, so off the CPU it is done only if asked for; and
    the answer decides what is done next, which cannot be compiled.
    """
    if getattr(model, "_can_set_experts_implementation", bool)():
        model.set_experts_implementation("eager")


def windows(config: Any) -> dict[int, int | None]:
    """The sliding window each layer has by its configuration."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is None:
        if getattr(config, "use_sliding_window", True) is False:
            window = None
        return dict.fromkeys(range(config.num_hidden_layers), window)
    return {
        layer: window if kind == "sliding_attention" else None for layer, kind in enumerate(types)
    }
