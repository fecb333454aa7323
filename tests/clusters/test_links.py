"""Times of all-reduces and messages, counted by hand and against published ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from stepweave.clusters.links import Fabric
from stepweave.clusters.parts import LinkConfig
from stepweave.clusters.shipped import part_of
from stepweave.graph.errors import StepweaveError

NODE = part_of("links", LinkConfig, "nvlink4")
NETWORK = part_of("links", LinkConfig, "ndr")
FABRIC = Fabric(NODE, NETWORK, 8, "nccl")


def test_a_ring_passes_twice_the_data_but_for_a_share() -> None:
    size = 475e9 / 1e6  # what the link passes in a µs
    assert FABRIC.all_reduce_us(range(8), size) == pytest.approx(24 + 2 * 7 / 8)
    assert FABRIC.all_reduce_us(range(2), size) == pytest.approx(24 + 1)


def test_160_small_all_reduces_take_the_published_3_8_ms() -> None:
    assert 160 * FABRIC.all_reduce_us(range(8), 8192 * 2) == pytest.approx(3840, rel=0.01)


def test_one_device_has_nobody_to_talk_to() -> None:
    assert FABRIC.all_reduce_us(range(3, 4), 1e9) == 0.0


def test_across_nodes_each_device_talks_to_its_counterparts_too() -> None:
    within = FABRIC.all_reduce_us(range(8), 8e6)
    between = 25 + (8e6 / 8) / 47e9 * 1e6  # two nodes: each passes its eighth of the data once
    assert FABRIC.all_reduce_us(range(16), 8e6) == pytest.approx(within + between)


def test_the_fastest_algorithm_depends_on_the_size() -> None:
    fastest = replace(FABRIC, algorithm="fastest")
    assert fastest.all_reduce_us(range(8), 1024) == pytest.approx(7.02, abs=0.01)
    assert fastest.all_reduce_us(range(8), 1e8) == pytest.approx(11 + 1.75 * 1e8 / 475e3)


def test_an_algorithm_above_its_largest_size_gives_way_to_one_without() -> None:
    one_shot = replace(FABRIC, algorithm="one_shot")
    assert one_shot.all_reduce_us(range(8), 512 * 1024) < 24
    above = one_shot.all_reduce_us(range(8), 512 * 1024 + 1)
    assert above == pytest.approx(11 + 1.75 * 524289 / 475e3)


def test_a_message_takes_the_link_that_joins_both_devices() -> None:
    assert FABRIC.message_us(6, 7, 370e3) == pytest.approx(7 + 1)
    assert FABRIC.message_us(7, 8, 47e3) == pytest.approx(12.5 + 1)


@pytest.mark.parametrize("algorithm", ["nccl", "fastest"])
@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_more_data_never_takes_less_time(algorithm: str, ranks: int) -> None:
    fabric = replace(FABRIC, algorithm=algorithm)
    times = [fabric.all_reduce_us(range(ranks), 2.0**power) for power in range(30)]
    assert all(before <= after for before, after in pairwise(times))


def test_nodes_without_a_network_are_refused() -> None:
    with pytest.raises(StepweaveError, match="no `network` joins them"):
        replace(FABRIC, network=None).message_us(7, 8, 1.0)
