"""The target's output layer and its arithmetic, for a drafter's own weights."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from stepweave.nodes import CausalLM, fitted, output_head
from stepweave.testing.models import tiny_model

ROWS = 24


def target(invariant: bool = True) -> CausalLM:
    return CausalLM.wrap(tiny_model("llama"), invariant=invariant)


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    size = target().hidden_size
    return nn.Sequential(nn.Linear(size, size), nn.SiLU(), output_head(target()))


def test_a_fitted_module_gives_a_row_the_same_bits_in_every_batch(module: nn.Module) -> None:
    states = torch.randn(ROWS, target().hidden_size)
    fit = fitted(module, target())
    assert fit is module
    whole = fit(states)
    assert all(torch.equal(fit(states[:count]), whole[:count]) for count in range(1, ROWS))


def test_it_keeps_its_own_arithmetic_where_the_target_does(module: nn.Module) -> None:
    states = torch.randn(ROWS, target().hidden_size)
    expected = module(states)
    fit = fitted(module, target(invariant=False))
    assert torch.equal(fit(states), expected)
    assert not any(parameter.requires_grad for parameter in fit.parameters())
    assert not fit.training


def test_the_output_head_is_the_targets_without_a_copy() -> None:
    model = target()
    head, hf = output_head(model), cast(Any, model.hf)
    assert head.weight.data_ptr() == hf.get_output_embeddings().weight.data_ptr()
    assert head(torch.zeros(2, model.hidden_size)).shape == (2, model.vocab_size)
    assert output_head(model, torch.float64).weight.dtype == torch.float64


def test_weights_take_the_targets_precision(module: nn.Module) -> None:
    half = CausalLM.wrap(tiny_model("llama", dtype=torch.bfloat16), invariant=False)
    assert {each.dtype for each in fitted(module, half).parameters()} == {torch.bfloat16}
