"""Medusa heads in the published layout say what a plain reading of the paper says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError, ModelNotFound
from stepweave.models.medusa import MedusaHeads
from stepweave.testing.models import tiny_model

SIZE, VOCAB = 48, 96
Weights = dict[str, Tensor]


def weights_of(heads: int = 3, layers: int = 2, *, own: bool = True) -> Weights:
    draw = torch.Generator().manual_seed(0)
    found: Weights = {}
    for head in range(heads):
        for layer in range(layers):
            name = f"{head}.{layer}.linear"
            found[f"{name}.weight"] = torch.randn(SIZE, SIZE, generator=draw) / 7
            found[f"{name}.bias"] = torch.randn(SIZE, generator=draw)
        if own:
            found[f"{head}.{layers}.weight"] = torch.randn(VOCAB, SIZE, generator=draw) / 7
    return found


def write(folder: Path, weights: Weights, heads: int = 3, layers: int = 2) -> Path:
    folder.mkdir()
    stated = {"medusa_num_heads": heads, "medusa_num_layers": layers}
    (folder / "config.json").write_text(json.dumps(stated))
    whole = {name: each.contiguous() for name, each in weights.items()}
    save_file(whole, folder / "medusa_lm_head.safetensors")
    return folder


def target() -> CausalLM:
    return CausalLM.wrap(tiny_model("llama", 4), invariant=False)


def plainly(weights: Weights, head: int, layers: int, x: Tensor, output: Tensor | None) -> Tensor:
    for layer in range(layers):
        mixed = (
            weights[f"{head}.{layer}.linear.weight"] @ x + weights[f"{head}.{layer}.linear.bias"]
        )
        x = x + mixed / (1 + (-mixed).exp())
    return (weights[f"{head}.{layers}.weight"] if output is None else output) @ x


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("own", [True, False])
def test_each_head_guesses_from_one_state(own: bool, prefix: str, tmp_path: Path) -> None:
    weights, lm = weights_of(own=own), target()
    folder = write(tmp_path / "heads", {f"{prefix}{key}": each for key, each in weights.items()})
    heads = MedusaHeads.load(folder, lm, least=2)
    assert len(heads) == 3
    states = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1))
    found = heads.guesses(states, 2)
    assert len(found) == 2
    hf: Any = lm.hf
    output = hf.get_output_embeddings()
    for head, logits in enumerate(found):
        for row, state in enumerate(states):
            wanted = plainly(weights, head, 2, state, None if own else output.weight)
            torch.testing.assert_close(logits[row], wanted, rtol=1e-4, atol=1e-4)


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Weights], None]:
    return lambda weights: weights.update({name: change(weights[name])})


def without(name: str) -> Callable[[Weights], None]:
    def apply(weights: Weights) -> None:
        del weights[name]

    return apply


FAULTS: dict[str, tuple[Callable[[Weights], None], str]] = {
    "a block is missing": (without("1.0.linear.bias"), r"lack 1\.0\.linear\.bias"),
    "an output layer is missing": (without("2.2.weight"), r"lack 2\.2\.weight"),
    "a head too many": (
        lambda w: w.update({"3.0.linear.weight": torch.ones(SIZE, SIZE)}),
        r"does not have: 3\.0",
    ),
    "another width": (
        changed("0.0.linear.weight", lambda each: each[:, :-1]),
        r"0\.0\.linear\.weight is \(48, 47\)",
    ),
    "another vocabulary": (
        changed("0.2.weight", lambda each: each[:-1]),
        r"0\.2\.weight is \(95, 48\)",
    ),
    "not finite": (changed("0.2.weight", lambda each: each * torch.inf), "not finite"),
    "integers": (changed("0.2.weight", lambda each: each.to(torch.int8)), "int8"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    weights = weights_of()
    change, said = FAULTS[fault]
    change(weights)
    with pytest.raises(ModelError, match=said):
        MedusaHeads.load(write(tmp_path / "heads", weights), target())


def test_more_drafts_than_heads_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "heads", weights_of())
    with pytest.raises(ModelError, match="has 3 heads; 4 drafts one behind the other take"):
        MedusaHeads.load(folder, target(), least=4)


def test_a_configuration_that_does_not_say_how_many_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "heads", weights_of())
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="medusa_num_heads None; want a number"):
        MedusaHeads.load(folder, target())


def test_pickled_heads_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "heads", weights_of())
    (folder / "medusa_lm_head.safetensors").rename(folder / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match=r"medusa_lm_head\.pt.*can run code"):
        MedusaHeads.load(folder, target())
    with pytest.raises(ModelNotFound, match=r"embedded-eagle.*here embedded-medusa fits"):
        MedusaHeads.load("embedded-eagle", target())
