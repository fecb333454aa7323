"""Rotary embeddings whose speeds depend on how long a text is: `longrope`, as in Phi-3.

A model with `longrope` has two sets of speeds. A text of at most `original_max_position_embeddings`
tokens is computed with the short ones, a longer text with the long ones, *all of it*: when the text
outgrows the original context, every key and value before is computed again (`generate` of Phi-3
does that too; for other families this is what it does without a cache). So the set belongs to a
row, not to a position, and rows of both kinds may share a batch.

transformers chooses by the largest position of the whole call. Here a call is asked for both sets,
and each token takes that of its row. The module's own code makes the angles, so what a family does
to them is done: it is only shown other positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from .errors import UnsupportedModel

_OWN = "_stepweave_own_rope"
_ROTARY = "RotaryEmbedding"  # how transformers calls these modules
_SHOWN = 8  # tokens that are added to show a long text: whole vectors, so that no bit changes


def switch_length(config: Any) -> int | None:
    """The most tokens that a text may have to be computed with the short speeds.

    None where there is one set of speeds, or no text can outgrow the first. Raises
    `UnsupportedModel` where only some layers have two, or the configuration does not say.
    """
    if "longrope" not in set(rope_types(config.to_dict())):
        return None
    stated: Any = config.rope_parameters
    original = stated.get("original_max_position_embeddings")
    if stated.get("rope_type") != "longrope" or not isinstance(original, int) or original < 1:
        raise UnsupportedModel(
            "its rotary embedding is of type 'longrope' for some layers only, or does not say "
            "rope_parameters.original_max_position_embeddings"
        )
    return original if original < config.max_position_embeddings else None


def stretched(config: Any) -> int | None:
    """The context that YaRN makes of the original one; None where it is not stated.

    Model cards have it switched on by `rope_scaling` alone, and leave `max_position_embeddings`.
    """
    stated: Any = getattr(config, "rope_parameters", None) or {}
    original, factor = stated.get("original_max_position_embeddings"), stated.get("factor")
    if stated.get("rope_type") != "yarn" or not isinstance(original, int):
        return None
    return int(original * factor) if isinstance(factor, int | float) else None


def rope_types(node: object) -> Iterator[str]:
    """Every type of rotary embedding that a configuration names, at any depth."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in ("rope_type", "type") and isinstance(value, str):
                yield value
            else:
                yield from rope_types(value)


class RowSpeeds:
    """Makes the rotary embeddings of a model choose their speeds by row, while `long` is set.

    `long[T]` says of each token of a pass whether its row is long; None: the model's own rule.
    Raises `UnsupportedModel` for a model whose rotary embedding is not found.
    """

    def __init__(self, model: PreTrainedModel, switch: int) -> None:
        self.switch = switch
        self.long: Tensor | None = None
        parts = _rotary_parts(model)
        if not parts:
            raise UnsupportedModel(f"{type(model).__name__}: cannot find its rotary embedding")
        for part in parts:
            part.__dict__[_OWN] = True
            part.__dict__["forward"] = self._by_row(part.forward)

    def _by_row(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor, position_ids: Tensor, **given: Any) -> Any:
            long = self.long
            if long is None:
                return own(x, position_ids, **given)
            tokens = position_ids.shape[-1]
            short = own(x, position_ids.clamp(max=self.switch - 1), **given)
            shown = own(x, F.pad(position_ids, (0, _SHOWN), value=self.switch), **given)
            return tuple(
                torch.where(long[None, :, None], of_long[:, :tokens], of_short)
                for of_long, of_short in zip(shown, short, strict=True)
            )

        return forward


def keep_dynamic(model: PreTrainedModel, config: Any) -> None:
    """Let embeddings of type `dynamic` not ask in each pass whether a text is beyond the context.

    None is, and asking makes the host wait for the device. Within the context their speeds are
    those that they begin with.
    """
    if "dynamic" in set(rope_types(config.to_dict())):
        for part in _rotary_parts(model):
            part.__dict__[_OWN] = True
            part.__dict__["forward"] = partial(inspect.unwrap(type(part).forward), part)


def _rotary_parts(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if type(part).__name__.endswith(_ROTARY)]


def undo_rope(model: nn.Module) -> None:
    """Give every rotary embedding its own code back."""
    for part in model.modules():
        if part.__dict__.pop(_OWN, None) is not None:
            del part.forward
