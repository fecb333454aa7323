"""Merged linear maps compute what the separate ones do, in fewer products and no more memory."""

import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError
from stepweave.models.merging import Part, merge
from stepweave.testing.models import FAMILIES, tiny_model
from tests.memory import settle
from tests.models.ragged import passes


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts matrix products with a weight."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


KINDS = ("weight", "bias")


def weight_bytes(model: nn.Module) -> int:
    stores = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in model.parameters()}
    return sum(store.nbytes() for store in stores.values())


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_merged_every_family_says_the_same_in_as_much_memory(family: str) -> None:
    plain = CausalLM.wrap(tiny_model(family, 1, torch.float64), invariant=False)
    model = tiny_model(family, 1, torch.float64)
    merged = CausalLM.wrap(model, invariant=False, merge=True)
    assert weight_bytes(model) == weight_bytes(plain.hf)
    experts = family == "gpt_oss"  # their weights are no linear layers
    notes = (
        "merged q_proj, k_proj, v_proj in 3 modules",
        *(() if experts else ("merged gate_proj, up_proj in 3 modules",)),
    )
    assert merged.notes == (() if family == "phi3" else notes)  # phi3 has them merged already
    for one, other in zip(passes(merged), passes(plain), strict=True):
        assert torch.equal(one.argmax(-1), other.argmax(-1))
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_what_is_merged_is_fewer_products_and_the_old_weights_are_gone() -> None:
    settle()
    model: Any = tiny_model("llama", 1, attention_bias=True)
    ids = torch.arange(9)[None]

    def products() -> int:
        with torch.no_grad(), (seen := Products()):
            model(ids)
        return seen.count

    before = products()
    layer = model.model.layers[0]
    old = weakref.ref(layer.self_attn.k_proj.weight)
    key = [layer.self_attn.k_proj.get_parameter(name).detach().clone() for name in KINDS]
    merge(model)
    assert before - products() == 3 * 3
    gc.collect()
    assert old() is None
    part = layer.self_attn.k_proj
    assert torch.equal(part.weight, key[0])
    assert torch.equal(part.bias, key[1])
    assert (part.in_features, part.out_features) == (48, 32)
    assert merge(model).notes() == ()


def test_parts_called_in_any_order_are_right_and_keep_nothing_afterwards() -> None:
    torch.manual_seed(0)
    block = nn.Module()
    linear = [nn.Linear(8, size) for size in (16, 4, 4)]
    block.q_proj, block.k_proj, block.v_proj = linear
    weights = [(each.weight.detach().clone(), each.bias.detach().clone()) for each in linear]
    merge(block)
    parts: Sequence[Any] = (block.q_proj, block.k_proj, block.v_proj)
    x, y = torch.randn(3, 8), torch.randn(5, 8)
    for index, given in [(0, x), (1, x), (0, y), (2, x), (2, x), (1, y), (0, x), (1, x), (2, x)]:
        torch.testing.assert_close(parts[index](given), F.linear(given, *weights[index]))
    product = parts[0].product
    assert product._input is None
    assert product._results == ()
    before = parts[0](x)
    x.neg_()
    assert not torch.equal(parts[0](x), before), "asked again, it computes again"


def plain_maps() -> dict[str, nn.Module]:
    return {name: nn.Linear(8, 4) for name in ("q_proj", "k_proj", "v_proj")}


class Adapted(nn.Linear):
    """As an adapter makes them: the result is not that of the weight alone."""


def odd(kind: str) -> dict[str, nn.Module]:
    maps: dict[str, Any] = plain_maps()
    if kind == "adapted":
        maps["v_proj"] = Adapted(8, 4)
    elif kind == "hook":
        maps["q_proj"].register_forward_hook(lambda module, args, output: output * 2)
    elif kind == "forward":
        maps["q_proj"].forward = lambda x: x
    elif kind == "tied":
        maps["k_proj"].weight = maps["q_proj"].weight
    elif kind == "bias":
        maps["k_proj"] = nn.Linear(8, 4, bias=False)
    elif kind == "dtype":
        maps["k_proj"] = nn.Linear(8, 4, dtype=torch.float64)
    else:
        maps["k_proj"] = nn.Linear(9, 4)
    return maps


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("adapted", "there is Adapted"),
        ("hook", "hooks or other code hang on them"),
        ("forward", "hooks or other code hang on them"),
        ("tied", "others use their weights"),
        ("bias", "some have a bias"),
        ("dtype", "they differ in inputs, dtype or device"),
        ("inputs", "they differ in inputs, dtype or device"),
    ],
)
def test_what_is_no_plain_linear_map_is_left_alone_and_said(kind: str, why: str) -> None:
    model = nn.ModuleList([nn.ModuleDict(odd(kind)), nn.ModuleDict(plain_maps())])
    before = dict(model[0].items())  # type: ignore[operator]
    found = merge(model)
    names = "q_proj, k_proj, v_proj"
    assert found.done == Counter({names: 1})
    assert found.left == Counter({f"{names} ({why})": 1})
    assert f"did not merge {names} ({why}) in 1 module" in found.notes()
    assert all(model[0][name] is each for name, each in before.items())  # type: ignore[index]
    assert all(isinstance(each, Part) for each in model[1].values())  # type: ignore[operator]


def test_a_merged_model_is_not_invariant() -> None:
    with pytest.raises(ModelError, match="neither compiled nor merged"):
        CausalLM.wrap(tiny_model(), invariant=True, merge=True)
