"""What of PEFT's layout is served, and what is refused by the key that asks for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from stepweave.models.adapter_files import read_adapter
from stepweave.models.adapters import adapt
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError, ModelNotFound, UnsupportedModel
from stepweave.models.support import plain_experts
from stepweave.models.trial import TwoRows
from stepweave.testing import save_adapter, save_tiny

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base"), "llama", num_hidden_layers=1)


def lm_of(base: Path, **how: Any) -> CausalLM:
    return CausalLM.load(base, **{"dtype": "float64", "invariant": False, **how})


def config(**said: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **said}))

    return change


def weights(**said: Tensor | None) -> Callable[[Path], None]:
    """Add or replace weights, by the end of their name; None: drop it."""

    def change(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        found = {**load_file(file), **{f"{Q}.{name}": each for name, each in said.items()}}
        renamed = {name.replace("__", "."): each for name, each in found.items()}
        save_file({name: each for name, each in renamed.items() if each is not None}, file)

    return change


def elsewhere(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        save_file({name.replace(old, new): each for name, each in load_file(file).items()}, file)

    return change


def broken_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def gone(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


REFUSED: dict[str, tuple[Callable[[Path], None], type[ModelError], str]] = {
    "no config": (gone, ModelNotFound, "no adapter_config.json"),
    "no JSON": (broken_config, ModelError, "not readable JSON"),
    "a pickle": (pickled, UnsupportedModel, "no safetensors file; it has adapter_model.bin"),
    "another method": (config(peft_type="IA3"), UnsupportedModel, "peft_type is 'IA3'"),
    "DoRA": (config(use_dora=True), UnsupportedModel, "has use_dora"),
    "whole modules": (config(modules_to_save=["lm_head"]), UnsupportedModel, "modules_to_save"),
    "biases": (config(bias="all"), UnsupportedModel, "bias 'all'"),
    "biases of its own": (config(lora_bias=True), UnsupportedModel, "has lora_bias"),
    "experts": (config(target_parameters=["experts"]), UnsupportedModel, "target_parameters"),
    "another base": (config(init_lora_weights="pissa_niter_4"), UnsupportedModel, "pissa_niter_4"),
    "no rank": (config(r=None), ModelError, "does not say r and lora_alpha"),
    "another rank": (config(r=8), ModelError, r"\(4, 48\) and \(64, 4\), not \(8, 48\)"),
    "half of it": (weights(lora_B__weight=None), ModelError, "lack .*q_proj.lora_B.weight"),
    "an embedding": (
        weights(lora_embedding_A=torch.zeros(4, 320)),
        UnsupportedModel,
        "lora_embedding_A, and only lora_A and lora_B",
    ),
    "not numbers": (
        weights(lora_A__weight=torch.full((4, 48), torch.nan)),
        ModelError,
        "not finite",
    ),
    "another model": (elsewhere("q_proj", "qq_proj"), ModelError, "trained for another model"),
    "the output layer": (
        elsewhere("model.layers.0.self_attn.q_proj", "lm_head"),
        UnsupportedModel,
        "the output layer",
    ),
    "a norm": (
        elsewhere("self_attn.q_proj", "input_layernorm"),
        UnsupportedModel,
        "only linear layers are adapted",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_plain_lora_of_this_model_is_refused_by_name(
    what: str, base: Path, tmp_path: Path
) -> None:
    spoil, kind, said = REFUSED[what]
    folder = save_adapter(tmp_path / "it", base, targets=("q_proj",))
    adapt(lm_of(base), {"it": folder})
    spoil(folder)
    with pytest.raises(kind, match=said):
        adapt(lm_of(base), {"it": folder})


def test_an_adapter_computes_the_same_beside_others_but_for_rounding(
    base: Path, tmp_path: Path
) -> None:
    folders = {
        name: save_adapter(tmp_path / name, base, seed, rank=rank)
        for seed, (name, rank) in enumerate({"one": 4, "two": 3, "three": 5}.items())
    }

    def logits(*names: str) -> Tensor:
        lm = lm_of(base)
        adapt(lm, {name: folders[name] for name in names})
        ids = torch.arange(3, 20)
        rows = TwoRows(lm, len(ids))
        number = torch.full_like(ids, names.index("three") + 1)
        return lm.forward(ids, rows.batch((0, 0, len(ids))), adapters=number)[0]

    alone = logits("three")
    for names in (("one", "three"), ("one", "two", "three"), ("three", "one")):
        torch.testing.assert_close(logits(*names), alone, rtol=0, atol=1e-11)


def test_a_folder_that_is_not_there_is_said(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such folder"):
        adapt(lm_of(base), {"it": tmp_path / "none"})


def test_a_merged_model_takes_no_adapter(base: Path, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "it", base)
    with pytest.raises(UnsupportedModel, match="not compiled, merged"):
        adapt(lm_of(base, merge=True), {"it": folder})


def test_a_layer_whose_weight_is_read_without_it_is_refused(base: Path, tmp_path: Path) -> None:
    lm = lm_of(base)
    layer: Any = lm.hf.get_submodule("model.layers.0.mlp")
    own = type(layer).forward
    weight = layer.down_proj.weight

    def forward(x: Tensor) -> Tensor:
        inner = layer.act_fn(layer.gate_proj(x)) * layer.up_proj(x)
        return torch.nn.functional.linear(inner, weight)

    assert own is not forward
    layer.forward = forward
    folder = save_adapter(tmp_path / "it", base, targets=("down_proj",))
    with pytest.raises(UnsupportedModel, match=r"does not call that layer"):
        adapt(lm, {"it": folder})


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss", "mistral"])
def test_attention_of_other_forms_is_adapted(family: str, tmp_path: Path) -> None:
    from tests.models.families import built, tiny_config

    config = tiny_config(family)
    assert config is not None
    built(config, torch.float32).save_pretrained(tmp_path / "base")
    load: Any = AutoModelForCausalLM.from_pretrained
    model = load(tmp_path / "base", dtype=torch.float64, attn_implementation="eager")
    targets = ("kv_b_proj", "o_proj", "down_proj") if family == "deepseek_v3" else ("k_proj",)
    folder = save_adapter(tmp_path / "it", tmp_path / "base", targets=targets, rank=2)
    if family == "deepseek_v3":
        with pytest.raises(UnsupportedModel, match=r"kv_b_proj' has .*kv_cache_form: expanded"):
            adapt(lm_of(tmp_path / "base"), {"it": folder})
    lm = lm_of(tmp_path / "base", cache_form="expanded")
    adapt(lm, {"it": folder})
    ids = torch.arange(3, 11)
    rows = TwoRows(lm, len(ids))
    base, _ = lm.forward(ids, rows.batch((0, 0, 8)))
    both = torch.cat([ids, ids])
    mixed, _ = lm.forward(
        both, rows.batch((0, 0, 8), (1, 0, 8)), adapters=torch.tensor([0] * 8 + [1] * 8)
    )
    for name, low in read_adapter("it", folder, model).items():
        model.get_submodule(name).weight.data += low.up @ low.down
    plain_experts(model)
    expected = model(ids[None], use_cache=False).logits[0]
    torch.testing.assert_close(mixed[8:], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(mixed[:8], base, rtol=1e-12, atol=1e-12)
    assert (mixed[8:] - mixed[:8]).abs().max() > 1e-2


def test_taking_the_model_over_again_takes_its_adapters_away(base: Path, tmp_path: Path) -> None:
    lm = lm_of(base)
    ids = torch.arange(3, 9)
    plain, _ = lm.forward(ids, TwoRows(lm, 6).batch((0, 0, 6)))
    adapt(lm, {"it": save_adapter(tmp_path / "it", base)})
    changed, _ = lm.forward(ids, TwoRows(lm, 6).batch((0, 0, 6)), adapters=torch.ones_like(ids))
    again = CausalLM.wrap(lm.hf, invariant=False)
    found, _ = again.forward(ids, TwoRows(again, 6).batch((0, 0, 6)))
    assert torch.equal(found, plain)
    assert not torch.equal(changed, plain)
    assert again.adapter_numbers == {}
