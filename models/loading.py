"""How the weights of a pipeline are loaded: the target's, and those of what drafts for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from .causal_lm import CausalLM, DType
from .compiled import Compile
from .eagle import EagleHead


@dataclass(frozen=True, slots=True)
class Loading:
    """What the pipeline says of its models, but for their names. See `CausalLM.load`."""

    dtype: DType = "auto"
    invariant: bool = True
    compile: Compile = "off"
    merge: bool | None = None

    def causal_lm(self, name: str | Path, device: torch.device) -> CausalLM:
        """A causal LM on `device`. Raises `ModelError`."""
        return CausalLM.load(
            name,
            dtype=self.dtype,
            device=device,
            invariant=self.invariant,
            compile=self.compile,
            merge=self.merge,
        )

    def eagle_head(self, name: str | Path, target: CausalLM) -> EagleHead:
        """A head for `target`, on its device. Raises `ModelError`."""
        return EagleHead.load(name, target, dtype=self.dtype, invariant=self.invariant)
