"""Parameters and cache sizes against those that are published, and a cache counted by hand."""

from __future__ import annotations

import pytest

from stepweave.clusters.model_shape import ShapeConfig
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
        ("deepseek_r1", 1, 61 * 128 * (192 + 128) * 2),
        ("deepseek_r1", 8, 61 * 16 * (192 + 128) * 2),
    ],
)
def test_a_token_takes_the_published_room_in_the_cache(
    name: str, tensor: int, bytes_a_token: int
) -> None:
    model = part_of("models", ShapeConfig, name)
    assert model.layers * model.cache_bytes(tensor) == bytes_a_token


def test_a_latent_cache_is_whole_on_every_rank_and_far_smaller() -> None:
    model = part_of("models", ShapeConfig, "deepseek_r1")
    assert model.latent is not None
    latent = model.model_copy(
        update={"latent": model.latent.model_copy(update={"cache": "latent"})}
    )
    assert latent.cache_bytes(1) == latent.cache_bytes(8) == (512 + 64) * 2
    assert latent.cache_bytes(8) < model.cache_bytes(8) / 8


def test_dense_first_layers_and_experts_add_up_to_the_whole() -> None:
    model = part_of("models", ShapeConfig, "deepseek_r1")
    cuts = [range(0, 2), range(2, 5), range(5, 61)]
    assert sum(map(model.layer_parameters, cuts)) == model.layer_parameters(range(61))
    assert [model.expert_layers(cut) for cut in cuts] == [0, 2, 56]
