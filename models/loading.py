"""How the weights of a pipeline are loaded: the target's, and those of what drafts for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ..backends import backend_of
from .cache_dtype import CacheForm
from .causal_lm import CausalLM, DType
from .compiled import Compile
from .eagle import EagleHead
from .errors import CompileFailed
from .medusa import MedusaHeads
from .mtp_checkpoint import mtp_networks
from .stage import Stage
from .stage_lm import StageLM

_M = TypeVar("_M", CausalLM, EagleHead)


@dataclass(frozen=True, slots=True)
class Loading:
    """What the pipeline says of its models, but for their names. See `CausalLM.load`."""

    dtype: DType = "auto"
    invariant: bool = True
    compile: Compile | Literal["auto"] = "off"
    merge: bool | None = None
    cache_form: CacheForm = "auto"

    def causal_lm(
        self,
        name: str | Path,
        device: torch.device,
        *,
        shards: int = 1,
        stage: Stage | None = None,
    ) -> CausalLM:
        """A causal LM on `device`, of which each of `shards` ranks has a part, or one `stage`.

        Raises `ModelError`.
        """

        def load(compile: Compile) -> CausalLM:
            how: Any = {
                "dtype": self.dtype,
                "device": device,
                "invariant": self.invariant,
                "compile": compile,
                "merge": self.merge,
                "cache_form": self.cache_form,
            }
            if stage is not None:
                return StageLM.load_stage(name, stage, **how)
            return CausalLM.load(name, **how, shards=shards)

        return self._compiled(load, "layer" if self._may_compile(device) else "off")

    def eagle_head(self, name: str | Path, target: CausalLM) -> EagleHead:
        """A head for `target`, on its device. Raises `ModelError`."""

        def load(compile: Compile) -> EagleHead:
            return EagleHead.load(
                name, target, dtype=self.dtype, invariant=self.invariant, compile=compile
            )

        return self._compiled(load, target.compile)

    def mtp_head(self, name: str | Path | None, target: CausalLM) -> EagleHead:
        """The modules of `target` that predict further tokens, from a folder or a hub name, or from
        the target's own checkpoint (None): the first, with the others behind it. Raises
        `ModelError`.
        """
        first, *others = mtp_networks(name, target)
        make = partial(
            EagleHead, target=target, invariant=self.invariant, compile="off", merge=False
        )
        return make(first, further=[make(each) for each in others])

    def medusa_heads(self, name: str | Path, target: CausalLM, *, least: int) -> MedusaHeads:
        """Heads for `target`, on its device, as many as `least` or more. Raises `ModelError`."""
        return MedusaHeads.load(name, target, least=least)

    def _may_compile(self, device: torch.device) -> bool:
        if self.compile == "auto":
            return not self.invariant and backend_of(device).compiles_triton
        return self.compile == "layer"

    def _compiled(self, load: Callable[[Compile], _M], how: Compile) -> _M:
        """What `load` gives; uncompiled where compiling fails that nobody asked for by name."""
        try:
            return load(how)
        except CompileFailed as error:
            if self.compile != "auto":
                raise
            model = load("off")
            model.notes += (f"its layers run uncompiled: {error.message}",)
            return model
