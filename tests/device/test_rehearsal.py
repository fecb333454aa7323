"""The checks for GPUs, on a device and streams that are not there: so that they run at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import sleep

import pytest
import torch

from stepweave.executors import run
from stepweave.executors.recorded_calls import RecordedCalls
from stepweave.executors.run import EXECUTORS
from stepweave.executors.virtual_streams import Deferred
from stepweave.graph.compile import compile_plan
from tests.device.emulated import DEVICE, Pinning, Placed
from tests.gpu.checks import (
    Surrounded,
    beside,
    device_ops,
    handed_over,
    held_up,
    pipeline,
    shipped_tokens,
    tiny_tokens,
    traced,
)

CPU = torch.device("cpu")


@pytest.fixture
def pinning() -> Iterator[Pinning]:
    with Pinning() as noted:
        yield noted


def test_shipped_tokens(pinning: Pinning) -> None:
    config = pipeline("async_ngram", depth=3)
    found, expected = (
        shipped_tokens(DEVICE, config, Placed(below, pinning))
        for below in (Deferred(2), EXECUTORS["serial"])
    )
    assert found == expected


def test_tiny_tokens(pinning: Pinning) -> None:
    found, expected = (
        tiny_tokens(DEVICE, "draft model", 3, Placed(below, pinning))
        for below in (RecordedCalls(), EXECUTORS["serial"])
    )
    assert found == expected
    checked = tiny_tokens(CPU, "draft model", 3, "serial", check="strict")
    assert checked == tiny_tokens(CPU, "draft model", 3, Deferred(4))


def test_each_op_held_up_in_turn() -> None:
    config = pipeline("async_eagle3_grammar", depth=2)
    ops = device_ops(config)
    assert {"forward.device", "sample.device", "draft.device", "d2h_copy.device"} <= set(ops)
    waits: list[int] = []
    executor = Surrounded(Deferred(1), held_up("draft.device", lambda: waits.append(1)))
    assert shipped_tokens(CPU, config, executor) == shipped_tokens(CPU, config, "serial")
    assert len(waits) > 5


def test_a_missing_wait_shows() -> None:
    plan = compile_plan(handed_over(CPU, lambda: None))
    right = [[step] * 8 for step in range(6)]
    for seed in range(5):
        found = run(plan, executor=Deferred(seed), steps=6, keep=["read"])
        assert found.kept["read"][-6:] == right
    loose = replace(plan, waits=())
    assert any(
        run(loose, executor=Deferred(seed), steps=6, keep=["read"]).kept["read"][-6:] != right
        for seed in range(5)
    )


def test_what_lies_beside_what() -> None:
    """Worker threads overlap as streams do; at depth one there is nothing to overlap with."""
    for depth, share in ((2, 0.5), (1, 0.0)):
        slow = Surrounded(EXECUTORS["threads"], held_up("d2h_copy.device", lambda: sleep(0.03)))
        events = traced(CPU, pipeline("async", depth=depth), slow)
        both, steps = beside(events, "d2h_copy.device", "forward.device")
        assert steps >= 8
        assert (both >= share * steps) if share else (both == 0)
