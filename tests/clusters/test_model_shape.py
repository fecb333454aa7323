"""Parameters and cache sizes against those that are published, and a cache counted by hand."""

from __future__ import annotations

import pytest

from stepweave.clusters.model_shape import ExpertsConfig, LatentConfig, ShapeConfig
from stepweave.clusters.shipped import part_of, shipped_parts


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama_8b", 8.03), ("llama_70b", 70.55), ("qwen_32b", 32.76), ("deepseek_r1", 671.03)],
)
def test_shipped_models_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    assert part_of("models", ShapeConfig, name).parameters / 1e9 == pytest.approx(
        billions, abs=0.01
    )


def test_every_shipped_model_is_compared_with_what_is_published() -> None:
    assert set(shipped_parts("models")) == {"llama_8b", "llama_70b", "qwen_32b", "deepseek_r1"}


@pytest.mark.parametrize(
    ("name", "tensor", "bytes_a_token"),
    [
        ("llama_8b", 1, 131_072),
        ("llama_70b", 1, 327_680),
        ("llama_70b", 8, 40_960),
        ("deepseek_r1", 1, 70_272),  # 70.272 KB of DeepSeek-V3: arXiv:2505.09343, table 1
        ("deepseek_r1", 8, 70_272),
    ],
)
def test_a_token_takes_the_published_room_in_the_cache(
    name: str, tensor: int, bytes_a_token: int
) -> None:
    model = part_of("models", ShapeConfig, name)
    assert model.layers * model.cache_bytes(tensor) == bytes_a_token


@pytest.mark.parametrize(
    ("form", "tensor", "bytes_a_layer", "operations"),
    [
        ("latent", 1, 2 * (512 + 64), 2 * 128 * (512 + 64 + 512)),
        ("latent", 8, 2 * (512 + 64), 2 * 16 * (512 + 64 + 512)),
        ("expanded", 1, 2 * 128 * (192 + 128), 2 * 128 * (192 + 128)),
        ("expanded", 8, 2 * 16 * (192 + 128), 2 * 16 * (192 + 128)),
    ],
)
def test_ranks_divide_heads_and_what_is_kept_of_heads_but_latents_are_whole_on_each(
    form: str, tensor: int, bytes_a_layer: int, operations: int
) -> None:
    model = part_of("models", ShapeConfig, "deepseek_r1")
    assert model.latent is not None
    kept = model.model_copy(update={"latent": model.latent.model_copy(update={"cache": form})})
    assert kept.cache_bytes(tensor) == bytes_a_layer
    assert kept.attention_operations(tensor) == operations


def test_queries_need_not_be_compressed() -> None:
    """DeepSeek-V2-Lite by its config.json: 15,706,484,224 parameters, norms among them."""
    model = ShapeConfig(
        describes="DeepSeek-V2-Lite",
        layers=27,
        hidden=2048,
        heads=16,
        kv_heads=16,
        head_dim=128,
        ffn=10944,
        vocab=102400,
        experts=ExpertsConfig(count=64, active=6, shared=2, ffn=1408, dense_layers=1),
        latent=LatentConfig(key_value=512, rope=64, no_rope=128, value=128),
    )
    norms = 27 * (2 * 2048 + 512) + 2048
    assert model.parameters + norms == 15_706_484_224
    assert model.replicated_parameters(range(1)) == 2048 * (512 + 64)
    assert model.replicated_parameters(range(2)) == 2 * 2048 * (512 + 64) + 2048 * 64  # a router


def test_dense_first_layers_and_experts_add_up_to_the_whole() -> None:
    model = part_of("models", ShapeConfig, "deepseek_r1")
    cuts = [range(0, 2), range(2, 5), range(5, 61)]
    assert sum(map(model.layer_parameters, cuts)) == model.layer_parameters(range(61))
    assert [model.expert_layers(cut) for cut in cuts] == [0, 2, 56]
