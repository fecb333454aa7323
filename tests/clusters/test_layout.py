"""Layouts: where ranks lie, who has which layers, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave.clusters.layout import Layout, LayoutConfig, Unfit, possible_layouts
from stepweave.clusters.memory import memory_of, stage_weights
from stepweave.clusters.model_shape import ShapeConfig
from stepweave.clusters.parts import DeviceConfig
from stepweave.clusters.shipped import part_of

LLAMA = part_of("models", ShapeConfig, "llama_70b")
R1 = part_of("models", ShapeConfig, "deepseek_r1")
H100 = part_of("devices", DeviceConfig, "h100")
H200 = part_of("devices", DeviceConfig, "h200")


def laid(
    tensor: int = 1, pipeline: int = 1, replicas: int = 1, model: ShapeConfig = LLAMA
) -> Layout:
    return Layout.of(LayoutConfig(tensor=tensor, pipeline=pipeline, replicas=replicas), model)


def test_every_layer_is_in_one_stage_and_stages_differ_by_one_at_most() -> None:
    for stages in (1, 3, 7, 8):
        layers = laid(pipeline=stages).layers(LLAMA)
        assert [each for stage in layers for each in stage] == list(range(80))
        assert max(map(len, layers)) - min(map(len, layers)) <= 1


def test_every_device_is_in_one_tensor_group() -> None:
    layout = laid(tensor=2, pipeline=2, replicas=2)
    groups = [layout.stage_devices(replica, stage) for replica in (0, 1) for stage in (0, 1)]
    assert [device for group in groups for device in group] == list(range(8))


def test_a_tensor_group_that_does_not_divide_the_kv_heads_is_refused_with_those_that_do() -> None:
    with pytest.raises(Unfit, match="tensor 16 does not divide 8 KV heads: use one of 1, 2, 4, 8"):
        laid(tensor=16)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(Unfit, match="the model has 80 layers only"):
        laid(pipeline=81)


def test_all_possible_layouts_use_all_devices() -> None:
    found = [Layout.of(each, LLAMA) for each in possible_layouts(8, LLAMA)]
    assert {each.devices for each in found} == {8}
    assert len({str(each) for each in found}) == len(found) == 10


def test_a_pipeline_has_one_group_more_than_stages_unless_it_says_otherwise() -> None:
    assert [laid(pipeline=stages).groups for stages in (1, 2, 4, 7, 8)] == [1, 3, 5, 8, 8]
    asked = LayoutConfig(pipeline=4, groups=2)
    assert Layout.of(asked, LLAMA).groups == 2


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (8, 1), (2, 4), (4, 3)])
def test_the_weights_of_all_devices_are_those_of_the_model(tensor: int, stages: int) -> None:
    layout = laid(tensor, stages)
    total = sum(tensor * stage_weights(layout, LLAMA, stage) for stage in range(stages))
    embedding = 128_256 * 8192  # whole on each device of the first stage
    assert total == pytest.approx(LLAMA.parameters + (tensor - 1) * embedding)


def test_a_tied_head_is_the_embedding_but_on_another_stage() -> None:
    tied = LLAMA.model_copy(update={"tied": True})
    assert stage_weights(laid(1), LLAMA, 0) - stage_weights(laid(1), tied, 0) == 128_256 * 8192
    both = laid(4, 2)
    assert [stage_weights(both, tied, n) for n in (0, 1)] == [
        stage_weights(both, LLAMA, n) for n in (0, 1)
    ]


def test_each_rank_has_routers_latents_and_the_embedding_whole() -> None:
    """Of DeepSeek-R1, by its config.json, counted by hand."""
    whole = 61 * 7168 * (1536 + 512 + 64) + 58 * 7168 * 256 + 129_280 * 7168
    for tensor in (1, 8):
        found = stage_weights(laid(tensor, model=R1), R1, 0)
        assert found == pytest.approx(whole + (R1.parameters - whole) / tensor)


def test_deepseek_r1_fits_eight_h200_and_not_eight_h100_and_says_by_how_much() -> None:
    layout = laid(tensor=8, model=R1)
    found = memory_of(layout, R1, H200, share=0.9, block_size=16)
    # 126.9 GB may be used; 671 GB of weights in 8 parts, and what every rank holds whole
    assert found.weights[0] / 1e9 == pytest.approx(85.59, abs=0.01)
    assert found.token == (61 * (512 + 64) * 2,)
    assert found.blocks == 36_741  # (126.9 − 85.590) × 10⁹ / (16 × 70,272)
    with pytest.raises(Unfit, match=r"needs 85\.59 GB for weights .* 72 of 80 GB may be used"):
        memory_of(layout, R1, H100, share=0.9, block_size=16)


def test_the_stage_with_the_least_room_decides_how_many_blocks_there_are() -> None:
    layout = laid(tensor=4, pipeline=3)
    found = memory_of(layout, LLAMA, H100, share=0.9, block_size=16)
    by_stage = [
        int((found.usable - weights) // (16 * token))
        for weights, token in zip(found.weights, found.token, strict=True)
    ]
    assert found.blocks == min(by_stage)
    assert len(set(by_stage)) > 1


def test_the_stage_that_does_not_fit_is_named() -> None:
    """The first has two of three layers, and the second a drafter that makes it a bit heavier."""
    sizes: dict[str, Any] = {
        "layers": 3,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
    }
    model = ShapeConfig(describes="x", ffn=14336, vocab=32000, **sizes)
    layout = laid(pipeline=2, model=model)
    first, second = (2 * stage_weights(layout, model, stage) for stage in (0, 1))
    memory_gb = (first + 25e6) / 1e9
    device = DeviceConfig(describes="d", memory_gb=memory_gb, memory_gb_s=1000, tflops=100)
    drafter = first - second + 1e6
    with pytest.raises(Unfit, match="stage 0 needs"):
        memory_of(layout, model, device, share=1.0, block_size=1024, drafter_bytes=drafter)


def test_experts_are_divided_and_there_are_as_many_as_are_visited() -> None:
    said = R1.model_dump()
    odd = ShapeConfig(**{**said, "experts": {**said["experts"], "ffn": 1001}})
    with pytest.raises(Unfit, match="tensor 2 does not divide 1001 columns of an expert"):
        laid(tensor=2, model=odd)
    with pytest.raises(ValueError, match="sent to 300 experts; there are 256"):
        ShapeConfig(**{**said, "experts": {**said["experts"], "active": 300}})
