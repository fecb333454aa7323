"""Which parts of a model run by kernels: those that compute what the kernels do, and no others."""

from __future__ import annotations

from typing import Any, Literal
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle_network import EagleLayer
from stepweave.testing.models import FAMILIES, tiny_eagle, tiny_model
from tests.models.interpreter import Interpreter
from tests.models.paged_rows import PagedRows

PROMPT = [5, 9, 2]


class Centred(LlamaRMSNorm):
    """A norm with a mean taken off."""

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = super().forward(x - 0.1 * x.mean(-1, keepdim=True))
        return normed


class Rectified(LlamaMLP):
    """An activation that no kernel has."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.relu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Doubled(LlamaAttention):
    """Attention whose result is more than its output map gives."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return 1.01 * super().forward(*args, **kwargs)[0], None


def odd() -> Any:
    """A Llama of three layers, each with a part of its own kind."""
    model: Any = tiny_model("llama")
    layers = model.model.layers
    layers[0].self_attn.__class__ = Doubled
    layers[1].mlp.__class__ = Rectified
    layers[2].input_layernorm.__class__ = Centred
    return model


def served() -> tuple[tuple[str, ...], list[int]]:
    """The notes of that model, and greedy tokens on the paged cache."""
    model = CausalLM.wrap(odd(), invariant=False)
    rows = PagedRows(model)
    out: list[int] = []
    logits = rows.feed(("mine", PROMPT))[0]
    for _ in range(2):
        out.append(int(logits[-1].argmax()))
        logits = rows.feed(("mine", [out[-1]]))[0]
    return model.notes, out


def test_parts_that_compute_something_else_keep_their_own_code(interpreted: Interpreter) -> None:
    notes, tokens = interpreted(f"{__name__}:served")
    assert notes == (
        "fused: 6 norms, 2 gated MLPs, 2 attention, 2 layers",
        "did not fuse: 1 gated MLPs, 1 attention, 1 layers",
    )
    plain, wanted = served()
    assert plain == ()
    assert tokens == wanted


def families(family: str, dtype: torch.dtype) -> tuple[str, ...]:
    """There: the notes of a family."""
    return CausalLM.wrap(tiny_model(family, dtype=dtype), invariant=False).notes


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_fused_as_far_as_they_go(
    interpreted: Interpreter, family: str, dtype: torch.dtype
) -> None:
    left = {
        "phi3": ("did not fuse: 3 attention",),  # queries, keys and values are one map
        "gpt_oss": (),  # its experts are no gated MLP
    }
    _, *others = interpreted(f"{__name__}:families", family, dtype)
    assert tuple(others) == left.get(family, ())


def of_head(style: Literal["eagle", "eagle3"], *, broken: bool) -> tuple[str, ...]:
    """There: the notes of a head, whose layer may do something else than its parts say."""
    own = EagleLayer.forward

    def other(layer: EagleLayer, *given: Any, **more: Any) -> Tensor:
        return 1.1 * own(layer, *given, **more)

    with patch.object(EagleLayer, "forward", other if broken else own):
        return tiny_eagle(tiny_model("llama"), style).notes


@pytest.mark.parametrize(
    "broken",
    [True, pytest.param(False, marks=pytest.mark.nightly)],
    ids=["changed", "as it is"],
)
def test_a_head_runs_by_kernels_if_they_say_what_it_says(
    interpreted: Interpreter, broken: bool
) -> None:
    what = "fused no layer: its kernels give other results" if broken else "fused the layers"
    assert interpreted(f"{__name__}:of_head", "eagle3", broken=broken) == (f"head: {what}",)


def failed() -> tuple[str, ...]:
    """There: the notes of a model where a kernel does not compile."""
    broken = RuntimeError("out of registers")
    with patch("stepweave.models.fusing.mlp_of", side_effect=broken):
        return CausalLM.wrap(tiny_model("llama", num_hidden_layers=1), invariant=False).notes


def test_where_a_kernel_fails_the_model_keeps_its_own_code(interpreted: Interpreter) -> None:
    [note] = interpreted(f"{__name__}:failed")
    assert note.startswith("fused no layer: ")
    assert "out of registers" in note


def undone() -> bool:
    """There: whether a model that is wrapped again in invariant arithmetic is as it was."""
    model = tiny_model("llama", num_hidden_layers=1)
    CausalLM.wrap(model, invariant=False)
    CausalLM.wrap(model, invariant=True)
    kinds = (LlamaRMSNorm, LlamaMLP, LlamaAttention)
    return not any("forward" in each.__dict__ for each in model.modules() if type(each) in kinds)


def test_wrapped_again_in_other_arithmetic_it_has_its_own_code(interpreted: Interpreter) -> None:
    assert interpreted(f"{__name__}:undone")
