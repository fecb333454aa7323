"""Linear maps of one input made one matrix product: queries, keys and values; gate and up.

A small batch reads every weight once and computes next to nothing, so a product takes as long as
its weights are in coming; several small ones each leave the memory idle at their start and end.
Their weights are laid end to end, and what was one map is a view of its rows: nothing is stored
twice. The model's own code goes on calling its maps one by one. The first that is called computes
all of them, and the others find theirs, as long as they are given the same tensor, which nobody
writes to in between; with another one, or asked twice, they compute anew. So code that calls them
otherwise is slower and not wrong.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .memory import let_go
from .products import shared_parameters

SETS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of maps that take the same input wherever they are siblings."""


@dataclass(frozen=True)
class Merged:
    """What became of a model's maps, for people."""

    done: Counter[str]  # by the names of the set
    left: Counter[str]  # by names and reason

    def notes(self) -> tuple[str, ...]:
        """A line for each kind of merging and one for each reason against it."""
        return (
            *(f"merged {names} in {_modules(count)}" for names, count in self.done.items()),
            *(f"did not merge {what} in {_modules(count)}" for what, count in self.left.items()),
        )


def merge(model: nn.Module) -> Merged:
    """Merge, in place, the linear maps of `model` that take the same input.

    Weights are moved module by module: the memory beside them is that of one module. A map that
    is not a plain `nn.Linear` (quantized, adapted, hooked) is left alone, with its siblings.
    Results differ from separate products by rounding, so a model whose bits were tried (see
    `invariant.py`) is merged before the trial or not at all. Doing it again changes nothing.
    """
    shared = shared_parameters(model)
    done: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for parent in list(model.modules()):
        for names in SETS:
            maps = [getattr(parent, name, None) for name in names]
            if not all(isinstance(each, nn.Module) for each in maps):
                continue
            if any(isinstance(each, Part) for each in maps):
                continue
            called = ", ".join(names)
            if (why := _why_not(maps, shared)) is not None:
                left[f"{called} ({why})"] += 1
                continue
            linear = [each for each in maps if isinstance(each, nn.Linear)]
            for name, part in zip(names, _parts(linear), strict=True):
                setattr(parent, name, part)
            done[called] += 1
    return Merged(done, left)


class Part(nn.Module):
    """One of several linear maps whose weights lie in one matrix; called like `nn.Linear`."""

    def __init__(self, product: "Product", index: int) -> None:
        super().__init__()
        self.product = product
        self.index = index

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return self.product.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Rows of its own part of the weight."""
        return self.product.sizes[self.index]

    @property
    def weight(self) -> Tensor:
        """`[out, in]`, a view."""
        return torch.split(self.product.weight, self.product.sizes)[self.index]

    @property
    def bias(self) -> Tensor | None:
        """`[out]`, a view."""
        bias = self.product.bias
        return None if bias is None else torch.split(bias, self.product.sizes)[self.index]

    def forward(self, x: Tensor) -> Tensor:
        """`[..., out]` of `x[..., in]`: columns of the product, not contiguous."""
        return self.product.part(x, self.index)


class Product(nn.Module):
    """The matrix of all parts, and for a moment their results.

    `weight[out, in]`, `bias[out]`: those of the parts end to end; `sizes`: how long each is.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, sizes: Sequence[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.sizes = list(sizes)
        self._input: Tensor | None = None
        self._results: tuple[Tensor, ...] = ()
        self._fetched: tuple[int, ...] = ()

    def part(self, x: Tensor, index: int) -> Tensor:
        """Part `index` of the product with `x[..., in]`, as `[..., out of the part]`.

        It is computed with the others if `x` is new.
        """
        if self._input is not x or index in self._fetched:
            out = F.linear(x, self.weight, self.bias)
            self._input, self._results = x, torch.split(out, self.sizes, dim=-1)
            self._fetched = ()
        result = self._results[index]
        self._fetched = (*self._fetched, index)
        if len(self._fetched) == len(self.sizes):  # what is kept no longer would hold memory
            self._input, self._results, self._fetched = None, (), ()
        return result


def _parts(maps: Sequence[nn.Linear]) -> list[Part]:
    """The maps as parts of one product; their own weights are not kept in memory beside it."""
    with torch.no_grad():
        weights: list[Tensor] = [each.weight for each in maps]
        biases: list[Tensor] = [each.bias for each in maps if each.bias is not None]
        product = Product(
            torch.cat(weights), torch.cat(biases) if biases else None, [*map(len, weights)]
        )
        for each in weights:
            let_go(each)
    return [Part(product, index).train(maps[0].training) for index in range(len(maps))]


def _why_not(maps: Iterable[object], shared: frozenset[int]) -> str | None:
    """What speaks against it; None if nothing does."""
    linear = [each for each in maps if type(each) is nn.Linear]
    others = sorted({type(each).__name__ for each in maps if type(each) is not nn.Linear})
    if others:
        return f"there is {', '.join(others)}"
    if any(_hooked(each) for each in linear):
        return "hooks or other code hang on them"
    weights = [each.weight for each in linear]
    if any(id(weight) in shared for weight in weights):
        return "others use their weights"
    if len({(weight.shape[1], weight.dtype, weight.device) for weight in weights}) > 1:
        return "they differ in inputs, dtype or device"
    if len({each.bias is None for each in linear}) > 1:
        return "some have a bias"
    return None


def _hooked(module: nn.Linear) -> bool:
    return "forward" in module.__dict__ or any(
        module.__dict__[name]
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    )


def _modules(count: int) -> str:
    return f"{count} module{'s' if count > 1 else ''}"
