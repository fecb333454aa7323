"""One stage of a causal language model: some of its layers, between those of other ranks.

A stage is handed what enters its first layer, and hands on what enters the first layer of the next
stage. The model's own loop over its layers runs, with the layers of other stages left out. What the
model does before the first layer, such as scaling embeddings, is done by the first stage alone: in
the others its result is replaced by what arrived, on its way into the first layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..backends import device_called
from . import trial
from .cache_dtype import CacheForm
from .causal_lm import CausalLM, DType, on_device
from .compiled import Compile
from .cutting import cut
from .errors import ModelError, UnsupportedModel
from .pretrained import load_model
from .source import EMBEDDED
from .stage import Stage
from .support import own_code


class StageLM(CausalLM):
    """The layers that `stage` has of a model, which is taken over and cut in place.

    Its `forward` takes `arrived[T, F]`, what the stage before handed on, and in place of logits a
    stage that is not the last returns what it hands on. F is `arrives` or `departs`: the hidden
    states, and beside them those of the layers that a drafter asked for, in ascending order. Raises
    as `CausalLM` does, and `UnsupportedModel` where a stage depends on more than what it is handed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stage: Stage,
        *,
        invariant: bool,
        compile: Compile = "off",
        merge: bool | None = None,
        cache_form: CacheForm = "auto",
        is_cut: bool = False,
    ) -> None:
        self.stage = stage
        if not is_cut:
            cut(model, stage)
        self._own = stage.layers(int(model.config.get_text_config(decoder=True).num_hidden_layers))
        self._handed = nn.Identity()
        self._arrived: Tensor | None = None
        self._misled = False  # tried with other embeddings than what arrived
        self._brought: tuple[int, ...] = ()
        self._made: tuple[int, ...] = ()
        super().__init__(
            model, invariant=invariant, compile=compile, merge=merge, cache_form=cache_form
        )
        with torch.no_grad(), own_code(self.name):
            self._require_nothing_else()

    @classmethod
    def load_stage(
        cls,
        name_or_path: str | Path,
        stage: Stage,
        *,
        dtype: DType = "auto",
        device: torch.device | str = "cpu",
        invariant: bool = True,
        compile: Compile = "off",
        merge: bool | None = None,
        cache_form: CacheForm = "auto",
    ) -> StageLM:
        """`CausalLM.load` of one stage, without the weights of others. Raises `ModelError`."""
        if dtype == "auto" and str(name_or_path) in EMBEDDED:
            dtype = "float32"
        wanted: torch.dtype | str = "auto" if dtype == "auto" else getattr(torch, dtype)
        read = load_model(name_or_path, wanted, stage=stage)
        model = on_device(read, name_or_path, device_called(str(device)))
        try:
            how: Any = {"compile": compile, "merge": merge, "cache_form": cache_form}
            return cls(model, stage, invariant=invariant, **how, is_cut=True)
        except ModelError as error:
            raise type(error)(f"{name_or_path}, {stage}: {error}") from error

    @property
    def layers(self) -> range:
        return self._own

    @property
    def in_stages(self) -> bool:
        return True

    @property
    def makes_logits(self) -> bool:
        return self.stage.last

    @property
    def entrance(self) -> nn.Module:
        return super().entrance if self.stage.first else self._handed

    @property
    def arrives(self) -> int:
        """Numbers per token that the stage before hands on; of the first stage 0."""
        return 0 if self.stage.first else self.hidden_size * (1 + len(self._brought))

    @property
    def departs(self) -> int:
        """Numbers per token that are handed on to the next stage; of the last stage 0."""
        parts = 1 + len(self._brought) + len(self._made)
        return 0 if self.stage.last else self.hidden_size * parts

    def _watch_layers(self, layers: Sequence[int]) -> list[torch.utils.hooks.RemovableHandle]:
        """Keep those of the stage's own layers; the stages before hand on theirs."""
        own, decoder = self._own, self._decoder_layers()
        here = {*own, *([self.num_layers] if self.stage.last else [])}
        self._brought = tuple(layer for layer in layers if layer < own.start)
        self._made = tuple(layer for layer in layers if layer in here)
        hooks = []
        if not self.stage.first:
            first = decoder[own.start]
            hooks.append(first.register_forward_pre_hook(self._enter, with_kwargs=True))
        kept = {*self._made, *([] if self.stage.last else [own.stop])}
        hooks += [self._keep_stream(decoder, layer) for layer in sorted(kept)]
        if not self.stage.last:
            self._watched = None  # what is watched is handed on
        return hooks

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What arrived enters the first layer, whatever the model would have given it."""
        if args:
            return (self._arrived, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self._arrived}

    def call(self, ids: Tensor, arrived: Tensor | None = None, **given: Any) -> Any:
        """As of `CausalLM`, for `ids[1, T]` and `arrived[T, F]`.

        What a stage hands on, `[1, T, F']`, stands in the place of `logits`.
        """
        asked: dict[str, Any] = {"input_ids": ids}
        brought: tuple[Tensor, ...] = ()
        if not self.stage.first:
            whole = self._tried(ids) if arrived is None else arrived[None]
            self._arrived, *features = torch.split(whole, self.hidden_size, dim=-1)
            self._arrived, brought = self._handed(self._arrived), tuple(features)
            embedded = self._arrived.flip(-1) if self._misled else self._arrived
            asked = {"inputs_embeds": embedded}
        self._streams.update(zip(self._brought, brought, strict=True))
        called: Any = self.hf if self.stage.last else self._base
        output = called(**asked, use_cache=False, **given)
        self._arrived = None
        if self.stage.last:
            return output
        streams, self._streams = self._streams, {}
        order = (self._own.stop, *self._brought, *self._made)
        return SimpleNamespace(logits=torch.cat([streams[layer] for layer in order], dim=-1))

    def _tried(self, ids: Tensor) -> Tensor:
        """Something to try the stage with, `[1, T, F]`: other numbers for each of `ids[1, T]`."""
        each = torch.arange(1, self.arrives + 1, device=self.device, dtype=torch.float64)
        return (ids[..., None] * each.sqrt()).sin().to(self.dtype)

    def _require_nothing_else(self) -> None:
        """A stage depends on what it is handed alone, and not on embeddings that it has not."""
        ids = trial.token_ids(self)
        rows = trial.TwoRows(self, len(ids))
        expected = self.forward(ids, rows.batch((0, 0, len(ids))))[0]
        self._misled = True
        try:
            found = self.forward(ids, rows.batch((1, 0, len(ids))))[0]
        finally:
            self._misled = False
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
            raise UnsupportedModel(
                f"{self.name} cannot be divided into stages: its later layers read the embeddings "
                "of the tokens too, which the first stage alone has"
            )
