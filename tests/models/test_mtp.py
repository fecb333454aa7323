"""Modules that predict further tokens say what a plain reading of the papers says."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.errors import ModelError
from stepweave.models.loading import Loading
from stepweave.models.mtp_checkpoint import merged_experts, modules_among, mtp_networks
from stepweave.models.support import plain_experts
from stepweave.testing.models import save_tiny, tiny_model, tiny_mtp
from tests.models.families import built, tiny_config

LAYOUTS = {
    "llama": "deepseek",
    "deepseek_v3": "deepseek",
    "glm4_moe": "deepseek",
    "qwen3": "qwen",
    "qwen3_next": "qwen",
}
QWEN = {
    "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj.weight": "mtp.fc.weight",
    "shared_head.norm.weight": "mtp.norm.weight",
}
Weights = dict[str, Tensor]
ROUNDING = 1e-5
"""The families' own norms round to single precision."""


def with_more(family: str, modules: int = 1, **fields: Any) -> PreTrainedModel:
    """A tiny model of `family` with two layers, and then those of the modules; `fields` of it."""
    config = copy.deepcopy(tiny_config(family))
    assert config is not None
    for name, value in fields.items():
        setattr(config, name, value)
    config.num_hidden_layers = 2 + modules
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [*config.layer_types[:2], *["full_attention"] * modules]
    model = built(config, torch.float64)
    plain_experts(model)
    return model


def module_weights(larger: PreTrainedModel, layout: str) -> Weights:
    """The modules as files have them: the larger model's last layers, and random weights beside."""
    model: Any = larger
    layers = list(model.get_decoder().layers)[2:]
    found: Weights = {}
    for place, layer in enumerate(layers):
        parts = _module_weights(layer, int(larger.config.hidden_size), seed=3 + place)
        for name, each in parts.items():
            if layout == "qwen":  # norms and the linear map are those of the last
                found[QWEN.get(name, f"mtp.layers.{place}.{name}")] = each
            else:
                found[f"model.layers.{2 + place}.{name}"] = each
    return found


def _module_weights(layer: nn.Module, size: int, seed: int) -> Weights:
    draw = torch.Generator().manual_seed(seed)

    def norm() -> Tensor:
        return 0.5 + torch.rand(size, generator=draw, dtype=torch.float64)

    found: Weights = {
        "enorm.weight": norm(),
        "hnorm.weight": norm(),
        "shared_head.norm.weight": norm(),
        "eh_proj.weight": torch.randn(size, 2 * size, generator=draw, dtype=torch.float64) / 8,
    }
    for name, weight in layer.state_dict().items():
        if name == "mlp.experts.gate_up_proj":
            for expert, both in enumerate(weight):
                gate, up = both.chunk(2)
                found[f"mlp.experts.{expert}.gate_proj.weight"] = gate
                found[f"mlp.experts.{expert}.up_proj.weight"] = up
        elif name == "mlp.experts.down_proj":
            found |= {f"mlp.experts.{e}.down_proj.weight": w for e, w in enumerate(weight)}
        else:
            found[name] = weight
    return found


def smaller(larger: PreTrainedModel) -> PreTrainedModel:
    """The same model without the layers of the modules."""
    config = copy.deepcopy(larger.config)
    config.num_hidden_layers = 2
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:2]
    model = built(config, torch.float64)
    names = model.state_dict().keys()
    model.load_state_dict({name: larger.state_dict()[name] for name in names})
    return model


def write(folder: Path, weights: Weights, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    whole = {name: each.contiguous().clone() for name, each in weights.items()}
    save_file(whole, folder / "module.safetensors")
    return folder


class Reference:
    """A module over a whole sequence: by the family's own layer, in its own attention."""

    def __init__(
        self, larger: PreTrainedModel, weights: Weights, epsilon: float, place: int = 0
    ) -> None:
        names = {theirs: ours for ours, theirs in QWEN.items()}
        prefixes = (f"model.layers.{2 + place}.", f"mtp.layers.{place}.")
        self.parts: Weights = {}
        for name, each in weights.items():
            for prefix in prefixes:
                if name.startswith(prefix):
                    self.parts[name.removeprefix(prefix)] = each
            if name in names:
                self.parts[names[name]] = each
        self.larger, self.epsilon, self.layer = larger, epsilon, 2 + place
        # Its norms keep what is added to one.
        self.one = 1.0 if larger.config.model_type == "qwen3_next" else 0.0

    def norm(self, name: str, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return x / (mean + self.epsilon).sqrt() * (self.one + self.parts[f"{name}.weight"])

    def __call__(self, following: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and states of each position, of the tokens after them and `hidden[T, H]`."""
        larger: Any = self.larger
        decoder = larger.get_decoder()
        ids = torch.tensor(following)
        joined = [self.norm("enorm", decoder.embed_tokens(ids)), self.norm("hnorm", hidden)]
        x = (torch.cat(joined, dim=-1) @ self.parts["eh_proj.weight"].T)[None]
        count = len(following)
        future = torch.full((count, count), -torch.inf, dtype=x.dtype).triu(1)[None, None]
        angles = decoder.rotary_emb(x, torch.arange(count)[None])
        out = decoder.layers[self.layer](
            x, attention_mask=future, position_ids=torch.arange(count)[None],
            position_embeddings=angles, past_key_values=None,
        )  # fmt: skip
        states = self.norm("shared_head.norm", out[0] if isinstance(out, tuple) else out)[0]
        return larger.lm_head(states), states


def place(start: int, stop: int, cache: Any) -> AttentionBatch:
    """Tokens of one row, whose blocks of four are out of order."""
    slots = torch.tensor([8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15])
    where = torch.arange(start, stop)
    return AttentionBatch((stop - start,), torch.tensor([[2, 1, 3]]), where, slots[where], cache)


@pytest.mark.parametrize("family", LAYOUTS)
def test_a_module_computes_what_its_layout_says(family: str, tmp_path: Path) -> None:
    larger = with_more(family)
    weights = module_weights(larger, LAYOUTS[family])
    target = CausalLM.wrap(smaller(larger), invariant=False)
    folder = write(tmp_path / "module", weights, {"vocab_size": 96})
    head = Loading(invariant=False).mtp_head(folder, target)
    assert (head.style, head.feature_layers) == ("mtp", None)
    reference = Reference(larger, weights, float(target.config.rms_norm_eps))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        hidden = torch.randn(8, head.hidden_size, dtype=torch.float64)
    ids = [5, 9, 40, 7, 33, 21, 60, 11]
    cache = head.new_cache(4, 4)
    with torch.no_grad():
        wanted, states = reference(ids[:5], hidden[:5])
    first, mine = head.forward(torch.tensor(ids[:3]), hidden[:3], place(0, 3, cache))
    logits, last = head.forward(torch.tensor(ids[3:5]), hidden[3:5], place(3, 5, cache))
    torch.testing.assert_close(torch.cat([first, logits]), wanted, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(torch.cat([mine, last]), states, rtol=0, atol=ROUNDING)
    # Then it goes on with what it guessed itself.
    with torch.no_grad():
        again, _ = reference(ids[:6], torch.cat([hidden[:5], states[-1:]]))
    logits, _ = head.forward(torch.tensor(ids[5:6]), last[-1:], place(5, 6, cache))
    torch.testing.assert_close(logits, again[-1:], rtol=0, atol=ROUNDING)


@contextmanager
def leaving_out(model: PreTrainedModel, pattern: str) -> Iterator[None]:
    """transformers leaves out the module's layer by its number in the published checkpoints."""
    kind: Any = type(model)
    before = kind._keys_to_ignore_on_load_unexpected
    kind._keys_to_ignore_on_load_unexpected = [pattern]
    try:
        yield
    finally:
        kind._keys_to_ignore_on_load_unexpected = before


def test_the_module_is_found_in_the_targets_own_checkpoint(tmp_path: Path) -> None:
    larger = with_more("deepseek_v3")
    model: Any = smaller(larger)
    model.save_pretrained(tmp_path / "whole")
    copies = {
        "model.layers.2.embed_tokens.weight": model.get_input_embeddings().weight,
        "model.layers.2.shared_head.head.weight": model.get_output_embeddings().weight,
    }
    weights = module_weights(larger, "deepseek") | copies
    save_file(
        {name: each.contiguous().clone() for name, each in weights.items()},
        tmp_path / "whole" / "model-00002.safetensors",
    )
    with leaving_out(model, r"model\.layers\.2.*"):
        _indexed(tmp_path / "whole")
        target = CausalLM.load(tmp_path / "whole", invariant=False)
    (network,) = mtp_networks(None, target)
    assert not network.config.own_embedding
    assert network.config.shares_output
    for name, each in network.state_dict().items():
        assert each.dtype == torch.float64, name
    head = EagleHead(network, target, merge=False)
    reference = Reference(larger, weights, float(target.config.rms_norm_eps))
    hidden = torch.linspace(-1, 1, 3 * head.hidden_size, dtype=torch.float64).view(3, -1)
    with torch.no_grad():
        wanted, _ = reference([4, 8, 15], hidden)
    found, _ = head.forward(torch.tensor([4, 8, 15]), hidden, place(0, 3, head.new_cache(4, 4)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=ROUNDING)


def _indexed(folder: Path) -> None:
    """An index over both files, as a checkpoint of several has."""
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    where = {
        key: file.name for file in sorted(folder.glob("*.safetensors")) for key in load_file(file)
    }
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_copies_that_differ_from_the_targets_are_used(tmp_path: Path) -> None:
    larger = with_more("llama")
    target = CausalLM.wrap(smaller(larger), invariant=False)
    weights = module_weights(larger, "deepseek")
    model: Any = larger
    output = model.get_output_embeddings()
    weights["model.layers.2.shared_head.head.weight"] = 2 * output.weight.detach()
    (network,) = mtp_networks(write(tmp_path / "own", weights, {}), target)
    assert network.config.own_output
    assert not network.config.own_embedding
    hidden = torch.ones(1, int(target.config.hidden_size), dtype=torch.float64)
    head = EagleHead(network, target, merge=False)
    logits, states = head.forward(torch.tensor([3]), hidden, place(0, 1, head.new_cache(4, 4)))
    torch.testing.assert_close(logits, states @ (2 * output.weight.detach()).T)


def without(name: str) -> Callable[[Weights], None]:
    def apply(weights: Weights) -> None:
        del weights[f"model.layers.2.{name}"]

    return apply


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Weights], None]:
    def apply(weights: Weights) -> None:
        weights[f"model.layers.2.{name}"] = change(weights[f"model.layers.2.{name}"])

    return apply


def third(weights: Weights) -> None:
    weights |= {name.replace(".2.", ".4."): each.clone() for name, each in weights.items()}


def half_a_second(weights: Weights) -> None:
    third(weights)
    fourth = {name: each for name, each in weights.items() if ".4." in name}
    weights |= {name.replace(".4.", ".3."): each.clone() for name, each in fourth.items()}
    del weights["model.layers.3.hnorm.weight"]


FAULTS: dict[str, tuple[Callable[[Weights], None], dict[str, Any], str]] = {
    "nothing": (lambda weights: weights.clear(), {}, "no module that predicts further tokens"),
    "a norm is missing": (without("enorm.weight"), {}, "lack enorm.weight"),
    "the last norm is missing": (without("shared_head.norm.weight"), {}, "lack norm.weight"),
    "a layer's weight is missing": (
        without("self_attn.q_proj.weight"),
        {},
        "lack layers.0.self_attn.q_proj.weight",
    ),
    "one too many": (
        lambda weights: weights.update({"model.layers.2.gate.weight": torch.ones(2)}),
        {},
        "does not have: layers.0.gate.weight",
    ),
    "another shape": (
        changed("eh_proj.weight", lambda each: each[:, :-1]),
        {},
        r"eh_proj.weight is \(64, 127\)",
    ),
    "integers": (changed("enorm.weight", lambda each: each.to(torch.int8)), {}, "int8"),
    "8 bits": (
        lambda weights: weights.update(
            {"model.layers.2.eh_proj.weight_scale_inv": torch.ones(1, 1)}
        ),
        {},
        r"stored in 8 bits, .*layers\.2\.eh_proj\.weight_scale_inv.*nodes\.draft\.model",
    ),
    "not finite": (changed("hnorm.weight", lambda each: each * torch.nan), {}, "not finite"),
    "another model's": (lambda weights: None, {"hidden_size": 32}, "hidden_size is 32"),
    "one between is missing": (third, {}, "at layers 2, 4; .* follow each other from 2 on"),
    "a part of the second is missing": (half_a_second, {}, "module 2: .*lack hnorm.weight"),
    "both layouts": (
        lambda weights: weights.update({"mtp.fc.weight": torch.ones(2)}),
        {},
        "both `mtp",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    larger = with_more("llama")
    change, config, said = FAULTS[fault]
    weights = module_weights(larger, "deepseek")
    change(weights)
    target = CausalLM.wrap(smaller(larger), invariant=False)
    with pytest.raises(ModelError, match=said):
        mtp_networks(write(tmp_path / "module", weights, config), target)


def test_modules_are_counted_by_their_layers() -> None:
    numbered = ["model.layers.1.norm.weight", "layers.2.enorm.weight", "model.layers.3.a.weight"]
    assert modules_among(numbered, 2) == 2
    named = ["mtp.fc.weight", "mtp.layers.0.a.weight", "mtp.layers.1.a.weight"]
    assert modules_among(named, 2) == 2
    assert modules_among(["model.embed_tokens.weight"], 2) == 0


def test_an_expert_that_is_missing_is_named() -> None:
    parts = {
        f"mlp.experts.{expert}.{part}_proj.weight": torch.ones(2, 2)
        for expert in range(3)
        for part in ("gate", "up", "down")
    }
    merged = merged_experts("it", parts)
    assert {name: tuple(each.shape) for name, each in merged.items()} == {
        "mlp.experts.gate_up_proj": (3, 4, 2),
        "mlp.experts.down_proj": (3, 2, 2),
    }
    del parts["mlp.experts.1.up_proj.weight"]
    with pytest.raises(ModelError, match=r"lack mlp\.experts\.1\.up_proj\.weight"):
        merged_experts("it", parts)


def test_a_target_without_a_module_or_a_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="was not loaded from a checkpoint"):
        mtp_networks(None, CausalLM.wrap(tiny_model(), invariant=False))
    target = CausalLM.load(save_tiny(tmp_path / "plain"), invariant=False)
    with pytest.raises(ModelError, match=r"neither `mtp\.\*` nor `model\.layers\.3"):
        mtp_networks(None, target)
    shutil.rmtree(tmp_path / "plain")


def test_a_module_in_invariant_arithmetic_drafts_alike_in_every_batch() -> None:
    """Loading tries it: a token alone, and beside others."""
    head = tiny_mtp(tiny_model("llama", 4, torch.float32), invariant=True)
    assert head.invariant
    assert isinstance(head.network.layers[0], nn.Module)
