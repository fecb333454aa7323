"""Leaving out of a model what another stage has.

The layers of other stages are left out before weights are loaded, so that their weights are never
read. All indices stay those of the whole model: configurations speak of layers by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .errors import UnsupportedModel
from .stage import Stage


class LeftOut(nn.Module):
    """In the place of a layer of another stage: it gives what it gets."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        for name, value in vars(of).items():  # the model's loop may ask what kind of layer it is
            if isinstance(value, str | int | float) and not name.startswith("_"):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first of what it is given."""
        return args[0] if args else next(iter(kwargs.values()))


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of a model's decoder layers. Raises `UnsupportedModel` where it cannot be found."""
    decoder: Any = getattr(model, "get_decoder", lambda: None)()
    decoder = decoder if isinstance(decoder, PreTrainedModel) else model.base_model
    wanted = model.config.get_text_config(decoder=True).num_hidden_layers
    found = [
        part
        for part in decoder.children()
        if isinstance(part, nn.ModuleList) and len(part) == wanted
    ]
    if len(found) != 1:
        raise UnsupportedModel(
            f"{type(model).__name__}: cannot find its decoder layers: "
            f"{type(decoder).__name__} has {len(found)} lists of {wanted} modules"
        )
    return found[0]


def cut(model: PreTrainedModel, stage: Stage) -> list[str]:
    """Leave out what the stage has no use for, in place; the names of the modules left out.

    The first stage embeds tokens, and the last has the output layer, and the embedding for drafters
    that read it. Raises `UnsupportedModel`, or `ModelError` for too many stages.
    """
    layers = decoder_layers(model)
    own = stage.layers(len(layers))
    gone: list[nn.Module] = []
    for index, layer in enumerate(layers):
        if index not in own:
            gone.append(layer)
            layers[index] = LeftOut(layer)
    hf: Any = model
    head, embedding = hf.get_output_embeddings(), hf.get_input_embeddings()
    others = [head] if not stage.last else []
    others += [embedding] if not (stage.first or stage.last) else []
    names = {module: name for name, module in _named(model, layers, gone)}
    for part in others:
        if part is None:
            raise UnsupportedModel(f"{type(model).__name__}: cannot find its output layer")
        _replace(model, names[part], LeftOut(part))
    if not stage.last:
        model.all_tied_weights_keys = {}
    return [names[each] for each in (*gone, *others)]


def _named(
    model: nn.Module, layers: nn.ModuleList, gone: Sequence[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    """Every module by its name, those of layers that are gone too."""
    [path] = [name for name, module in model.named_modules() if module is layers]
    places = [index for index, layer in enumerate(layers) if isinstance(layer, LeftOut)]
    yield from ((f"{path}.{index}", each) for index, each in zip(places, gone, strict=True))
    yield from model.named_modules()


def _replace(model: nn.Module, name: str, by: nn.Module) -> None:
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, by)


def loading_only(kind: type[PreTrainedModel], stage: Stage) -> type[PreTrainedModel]:
    """A class that loads as `kind` does, but only what the stage has of its weights."""

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, config, *args, **kwargs)
        prefix = re.escape(f"{kind.base_model_prefix}.")
        gone = (name.removeprefix(f"{kind.base_model_prefix}.") for name in cut(self, stage))
        self._keys_to_ignore_on_load_unexpected = {
            *(self._keys_to_ignore_on_load_unexpected or ()),
            *(f"^({prefix})?{re.escape(name)}[.]" for name in gone),
        }

    return type(kind.__name__, (kind,), {"__init__": build, "__module__": kind.__module__})
