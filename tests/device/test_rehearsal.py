"""The checks for GPUs, on a device and streams that are not there: so that they run at all."""

from __future__ import annotations

from dataclasses import replace
from time import sleep

import pytest
import torch

from stepweave.executors import run
from stepweave.executors.run import EXECUTORS
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.planner.compile import compile_plan
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.unverified import run_unverified
from tests.device.emulated import DEVICE, Placed
from tests.device.pipelines import SHIPPED
from tests.device.taped import sizes_of_a_gpu, taped
from tests.gpu.checks import (
    Shipped,
    Surrounded,
    beside,
    device_ops,
    handed_over,
    held_up,
    pipeline,
    replayed_as_usual,
    tiny_tokens,
    traced,
)

CPU = torch.device("cpu")
BY_DAY = ("async_swap", "async_vision")  # each has a segment that is never replayed


def test_shipped_tokens() -> None:
    config = pipeline("async_ngram", depth=3)
    shipped = Shipped(DEVICE, config)
    expected = shipped.tokens(Placed(EXECUTORS["serial"]))
    assert shipped.tokens(Placed(Deferred(2))) == expected


def test_tiny_tokens() -> None:
    found, expected = (
        tiny_tokens(DEVICE, "ngram", 3, Placed(below))
        for below in (RecordedCalls(), EXECUTORS["serial"])
    )
    assert found == expected
    checked = tiny_tokens(CPU, "ngram", 3, "serial", check="strict")
    assert checked == tiny_tokens(CPU, "ngram", 3, Deferred(4))


def test_each_op_held_up_in_turn() -> None:
    config = pipeline("async_eagle3_grammar", depth=2)
    ops = device_ops(config)
    assert {"forward.device", "sample.device", "draft.device", "d2h_copy.device"} <= set(ops)
    waits: list[int] = []
    executor = Surrounded(Deferred(1), held_up("draft.device", lambda: waits.append(1)))
    shipped = Shipped(CPU, config)
    assert shipped.tokens(executor) == shipped.tokens("serial")
    assert len(waits) > 5


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.nightly) for name in SHIPPED],
)
def test_replayed_steps(name: str) -> None:
    """All that a GPU is asked in its place, with the sizes that it has."""
    with sizes_of_a_gpu():
        overrides = {"model.invariant": "false", "depth": "2", "scheduler.max_rows": "2"}
        llm, _ = taped(name, **overrides)
        replayed_as_usual(llm, RecordedCalls())


def test_a_missing_wait_shows() -> None:
    plan = compile_plan(handed_over(CPU, lambda: None))
    right = [[step] * 8 for step in range(6)]
    for seed in range(5):
        found = run(plan, executor=Deferred(seed), steps=6, keep=["read"])
        assert found.kept["read"][-6:] == right
    loose = replace(plan, waits=())
    assert any(
        run_unverified(loose, Deferred(seed), RunArguments(6, keep=["read"])).kept["read"][-6:]
        != right
        for seed in range(5)
    )


def test_what_lies_beside_what() -> None:
    """Worker threads overlap as streams do; at depth one there is nothing to overlap with."""
    slow = Surrounded(EXECUTORS["threads"], held_up("d2h_copy.device", lambda: sleep(0.01)))
    shares = []
    for depth in (1, 2):
        events = traced(CPU, pipeline("async_eagle3_grammar", depth=depth), slow)
        both, steps = beside(events, "d2h_copy.device", "forward.device")
        assert steps >= 8
        shares.append(both / steps)
    assert shares[0] == 0
    assert shares[1] >= 0.5
