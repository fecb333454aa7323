"""The roofline of a forward pass, against figures that were published or counted by hand."""

from __future__ import annotations

import pytest

from stepweave.clusters.forward_cost import ForwardCost, Work
from stepweave.clusters.layout import Layout
from stepweave.clusters.links import Fabric
from stepweave.clusters.model_shape import ShapeConfig
from stepweave.clusters.parts import DeviceConfig, LinkConfig
from stepweave.clusters.shipped import part_of

H200 = part_of("devices", DeviceConfig, "h200")
WHOLE = H200.model_copy(update={"memory_share": 1.0, "compute_share": 1.0})
FABRIC = Fabric(part_of("links", LinkConfig, "nvlink4"), None, 8, "nccl")


def cost(name: str, layout: Layout, stage: int = 0, device: DeviceConfig = H200) -> ForwardCost:
    return ForwardCost(part_of("models", ShapeConfig, name), device, FABRIC, layout, stage)


def decode(rows: int, context: int = 400) -> Work:
    return Work(rows, rows, rows, rows * context, rows * context)


def test_one_row_of_8b_reads_its_weights_in_3_13_ms_at_the_bandwidth_of_the_data_sheet() -> None:
    found = cost("llama_8b", Layout(), device=WHOLE).of(decode(1))
    assert found.weights == pytest.approx(15.01e9 / 4.8e6, rel=1e-3)
    assert found.attention == pytest.approx(400 * 131_072 / 4.8e6)
    assert found.kernels == pytest.approx(32 * 13 * 1.3)
    assert found.all_reduce == found.arithmetic == 0


def test_many_tokens_are_bound_by_arithmetic() -> None:
    found = cost("llama_8b", Layout(), device=WHOLE).of(Work(1, 8192, 1, 8192, 8192 * 4096))
    assert found.arithmetic == pytest.approx(2 * 6.98e9 * 8192 / 989.5e6, rel=1e-3)
    assert found.weights == pytest.approx(525e6 * 2 / 4.8e6, rel=1e-3)  # of the head: one position


def test_a_70b_step_on_eight_devices_has_160_all_reduces_and_a_gathering() -> None:
    found = cost("llama_70b", Layout(tensor=8)).of(decode(1))
    assert found.all_reduce == pytest.approx(161 * 24, rel=0.005)
    assert found.weights == pytest.approx(69.5e9 * 2 / 8 / (4.8e6 * 0.9), rel=1e-2)


def test_stages_together_take_what_one_takes() -> None:
    whole = cost("llama_70b", Layout()).of(decode(4))
    layout = Layout(pipeline=4, groups=5)
    parts = [cost("llama_70b", layout, stage).of(decode(4)) for stage in range(4)]
    assert sum(each.us for each in parts) == pytest.approx(whole.us)


def test_the_more_tokens_the_more_experts_are_read_but_never_more_than_there_are() -> None:
    forward = cost("deepseek_r1", Layout(tensor=8), device=WHOLE)
    read = [forward.of(decode(rows)).weights for rows in (1, 2, 8, 64, 128)]
    assert read == sorted(read)
    expert = 58 * 3 * 7168 * 2048 / 8 / 4.8e6
    assert read[1] - read[0] == pytest.approx(8 * (1 - 8 / 256) * expert)
    assert read[-1] - read[0] < (256 - 8) * expert


@pytest.mark.parametrize(
    ("tensor", "us"),
    [
        # 400 latents of 576 numbers in each layer, which every rank reads whole
        (8, 61 * 400 * 1152 / 4.8e6),
        # 128 heads on one device: what is computed with a latent takes longer than reading it
        (1, 61 * 400 * 2 * 128 * (576 + 512) / 989.5e6),
    ],
)
def test_attention_to_latents_reads_each_once_for_all_heads(tensor: int, us: float) -> None:
    found = cost("deepseek_r1", Layout(tensor=tensor), device=WHOLE).of(decode(1))
    assert found.attention == pytest.approx(us)


def test_nothing_takes_no_time() -> None:
    assert cost("llama_8b", Layout()).of(Work()).us == 0
