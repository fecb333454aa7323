"""What cannot be divided among ranks is refused before or after its weights are read."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.models import sharding
from stepweave.models.errors import ModelError, UnsupportedModel
from stepweave.models.sharding import dividing, require_divided, whole


def config_of(family: str, **sizes: Any) -> Any:
    return CONFIG_MAPPING[family](**{"num_attention_heads": 8, "num_key_value_heads": 4, **sizes})


def test_a_plan_of_transformers_is_asked_for_with_the_number_of_ranks() -> None:
    pytest.importorskip("accelerate")
    asked = dividing("model", config_of("llama"), 2)["distributed_config"]
    assert (asked.tp_size, asked.tp_plan) == (2, None)


def test_heads_that_cannot_be_divided_are_refused_with_the_numbers_that_fit() -> None:
    pytest.importorskip("accelerate")
    with pytest.raises(UnsupportedModel) as refused:
        dividing("model", config_of("llama"), 3)
    assert refused.value.message == (
        "model: it has 8 attention and 4 key-value heads, which cannot be divided among 3 ranks; "
        "2 or 4 ranks fit"
    )
    with pytest.raises(UnsupportedModel, match="no number of ranks fit"):
        dividing("model", config_of("llama", num_attention_heads=1, num_key_value_heads=1), 2)


def test_key_value_heads_that_every_rank_has_whole_are_no_obstacle() -> None:
    pytest.importorskip("accelerate")
    assert dividing("model", config_of("phi3", num_key_value_heads=1), 2)
    with pytest.raises(UnsupportedModel, match="it has 8 attention heads"):
        dividing("model", config_of("phi3"), 3)


def test_deepseek_gets_a_plan_for_its_attention_too() -> None:
    pytest.importorskip("accelerate")
    asked = dividing("model", config_of("deepseek_v3"), 2)["distributed_config"]
    assert asked.tp_plan["model.layers.*.self_attn.kv_a_proj_with_mqa"] == "mla_kv_a_proj"


def test_a_family_without_a_plan_is_refused_by_name() -> None:
    pytest.importorskip("accelerate")
    with pytest.raises(UnsupportedModel, match="no plan for dividing a gpt2 among ranks"):
        dividing("model", CONFIG_MAPPING["gpt2"](), 2)


def test_without_accelerate_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs accelerate: pip install 'stepweave\[ranks\]'"):
        dividing("model", config_of("llama"), 2)


class Divided(nn.Parameter):
    """A parameter of which a rank has half."""

    def to_local(self) -> torch.Tensor:
        return self.detach()[: len(self) // 2]

    def full_tensor(self) -> torch.Tensor:
        return self.detach()


def test_a_model_of_which_each_rank_has_most_is_refused_with_its_largest_part() -> None:
    model = nn.Module()
    model.experts = Divided(torch.ones(400, 1))
    model.norm = nn.Parameter(torch.ones(100, 1))
    require_divided("model", model, 2)  # 300 of 500
    model.attention = nn.Parameter(torch.ones(300, 1))
    with pytest.raises(UnsupportedModel) as refused:
        require_divided("model", model, 2)
    assert refused.value.message == (
        "model: of its parameters each of 2 ranks would have 75%, since the plan of transformers "
        "leaves 'attention' and others whole; run it on one rank"
    )


def test_a_head_takes_all_of_a_tensor_that_is_divided() -> None:
    assert len(whole(Divided(torch.ones(4, 1)))) == 4
    plain = torch.ones(3)
    assert whole(plain) is plain


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"model.invariant": True}, "invariant: true"),
        ({"model.compile": "layer"}, "compile: layer"),
        ({"model.merge": True}, "merge: true"),
    ],
)
def test_what_replaces_parts_that_ranks_share_is_refused(more: dict[str, Any], asked: str) -> None:
    with pytest.raises(ConfigError, match=f"`{asked}` replaces parts of the model that 2 ranks"):
        load_config("async", {"model.parallel.tensor": 2, **more})


def test_with_ranks_arithmetic_is_not_invariant_and_nothing_is_recorded() -> None:
    config = load_config("async", {"model.parallel.tensor": 2})
    assert isinstance(config, PipelineConfig)
    assert (config.model.invariant, config.recorded, config.captured) == (False, False, False)
    alone = load_config("async", {"model.parallel.tensor": 1})
    assert isinstance(alone, PipelineConfig)
    assert (alone.model.invariant, alone.recorded) == (True, True)


def test_the_heads_of_each_layer_must_be_divisible_where_they_differ() -> None:
    config = SimpleNamespace(
        num_attention_heads=8,
        per_layer_attributes={"num_key_value_heads"},
        per_layer_config=[SimpleNamespace(num_key_value_heads=heads) for heads in (4, 2, 4)],
    )
    plan = {"layers.*.self_attn.k_proj": "colwise"}
    sharding._require_heads("it", config, plan, 2)
    said = (
        "8 attention and 2 key-value and 4 key-value heads, which cannot be divided among 4 ranks"
    )
    with pytest.raises(UnsupportedModel, match=f"{said}; 2 ranks fit"):
        sharding._require_heads("it", config, plan, 4)
