"""LoRA adapters of a model, each token with that of its row, in the products of one pass.

Each adapted layer has the matrices of all adapters side by side: one product with all `down`
matrices, zeros in place of what belongs to other adapters than the token's, and one product with
all `up` matrices. So a step costs as much whichever adapters its rows have, and nothing has to be
asked of the device or sorted by the host. The zeros add nothing, but a sum of other length may be
rounded otherwise: up to that, what an adapter computes does not depend on which others the model
has. (Chen et al. 2023, arXiv:2310.18547, gather each row's matrices instead, which pays off for
hundreds of adapters.)

A row of the base model has the bits that it has without adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import invariant, trial
from .adapter_files import LowRank, read_adapter
from .errors import UnsupportedModel

if TYPE_CHECKING:
    from .causal_lm import CausalLM

_OWN = "_stepweave_own_forward"
BASE = 0
"""The number of no adapter. Adapters have numbers from 1 on."""


class Adapters:
    """The adapters of a model, which is changed in place; `folders` by name.

    Raises `ModelError` (or a kind of it) where one of them cannot be served.
    """

    def __init__(self, model: CausalLM, folders: Mapping[str, str | Path]) -> None:
        self.numbers = {name: number for number, name in enumerate(folders, start=BASE + 1)}
        self.called: set[str] = set()
        self._keeps_latents = any(shape.within for shape in model.layer_shapes)
        self._chosen: Tensor | None = None
        self._mixers = model.mixers  # which are handed some of a pass's tokens at a time
        self._masks: dict[tuple[tuple[int, ...], str], tuple[Tensor, Tensor]] = {}
        read = {
            name: read_adapter(name, Path(folder).expanduser(), model.hf)
            for name, folder in folders.items()
        }
        modules = dict(model.hf.named_modules())
        self.modules = tuple(sorted({module for parts in read.values() for module in parts}))
        product = invariant.linear if model.invariant else F.linear
        for name in self.modules:
            parts = {self.numbers[each]: of[name] for each, of in read.items() if name in of}
            self._install(name, modules[name], parts, product)

    def choose(self, numbers: Tensor | None) -> None:
        """A pass begins whose tokens have the adapters `numbers[T]`; None: all are of the base."""
        self._chosen = numbers
        self._masks.clear()

    def require_called(self, name: str) -> None:
        """Raises `UnsupportedModel` where a pass did not call every adapted layer."""
        if missed := sorted(set(self.modules) - self.called):
            other = ", or say model.kv_cache_form: expanded" if self._keeps_latents else ""
            raise UnsupportedModel(
                f"{name}: {missed[0]!r} has an adapter, but a pass does not call that layer for "
                f"each token; leave it out of the adapter's target_modules{other}"
            )

    def _install(
        self,
        name: str,
        module: nn.Module,
        parts: Mapping[int, LowRank],
        product: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        assert isinstance(module, nn.Linear)
        dtype, device = module.weight.dtype, module.weight.device
        down = torch.cat([each.down for each in parts.values()]).to(device, dtype)
        up = torch.cat([each.up for each in parts.values()], dim=1).to(device, dtype)
        owners = tuple(number for number, each in parts.items() for _ in range(len(each.down)))
        of_columns = torch.tensor(owners, device=device)
        module.__dict__[_OWN] = module.__dict__.get("forward")
        own = module.forward

        def forward(x: Tensor) -> Tensor:
            out: Tensor = own(x)
            if self._chosen is None:
                return out
            adapted, others = self._mask(owners, of_columns)
            if x.shape[:-1].numel() != len(adapted):
                raise UnsupportedModel(
                    f"{name!r} has an adapter, but computes {x.shape[:-1].numel()} of "
                    f"{len(adapted)} tokens; leave it out of the adapter's target_modules"
                )
            self.called.add(name)
            inner = product(x.reshape(len(adapted), -1), down).masked_fill(others, 0)
            more = out + product(inner, up).view(out.shape)
            return torch.where(adapted.view(*x.shape[:-1], 1), more, out)

        module.__dict__["forward"] = forward

    def _mask(self, owners: tuple[int, ...], of_columns: Tensor) -> tuple[Tensor, Tensor]:
        """`[T]`: tokens with an adapter; `[T, r]`: columns that are not of the token's.

        Of the tokens at hand: all of the pass, or those that a layer with states is handed.
        """
        assert self._chosen is not None
        at = self._mixers.at
        key = owners, f"{at}"
        if key not in self._masks:
            chosen = self._chosen if at is None else self._chosen[at]
            others = chosen[:, None] != of_columns
            self._masks[key] = ~others.all(dim=1), others
        return self._masks[key]


def undo(model: nn.Module) -> None:
    """Give the layers of `model` back what they had in place of an adapted product."""
    for module in model.modules():
        if _OWN in module.__dict__:
            own = module.__dict__.pop(_OWN)
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


def adapt(model: CausalLM, folders: Mapping[str, str | Path]) -> None:
    """Give `model` these adapters, and try each out.

    Raises `ModelError` for an adapter that does not fit, and `UnsupportedModel` for what is no
    plain LoRA, or a model whose layers are not plain.
    """
    if model.compile != "off" or model.merge or model.in_stages:
        raise UnsupportedModel(
            f"{model.name}: adapters are for a model whose layers are here as they are: not "
            "compiled, merged or divided into stages"
        )
    undo(model.hf)
    made = Adapters(model, folders)
    model.adapters = made
    ids = trial.token_ids(model)
    rows = trial.TwoRows(model, len(ids))
    for name, number in made.numbers.items():
        made.called.clear()
        numbers = torch.full_like(ids, number)
        chunk = (0, 0, len(ids))
        logits, _ = model.forward(
            ids, rows.batch(chunk), adapters=numbers, states=rows.states(chunk)
        )
        made.require_called(model.name)
        if not bool(logits.isfinite().all()):
            raise UnsupportedModel(f"adapter {name!r}: with it the model's logits are not finite")
