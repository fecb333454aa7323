"""Checking mode on a GPU: pipelines keep to their declarations, and wait for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepweave.executors import NodeFailure, run
from stepweave.executors.errors import ContractViolation
from stepweave.graph.node import Node, Op
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.checking.mode import Strict
from tests.device.pipelines import DRAFTERS
from tests.gpu.checks import tiny_tokens


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_node_waits_or_does_what_it_did_not_declare(drafter: str, gpu: torch.device) -> None:
    """torch itself refuses to wait while a device op is launched: `set_sync_debug_mode`."""
    for depth in (1, 3):
        checked = tiny_tokens(gpu, drafter, depth, "cuda", check="strict")
        assert checked == tiny_tokens(gpu, drafter, depth, "serial")
    assert torch.cuda.get_sync_debug_mode() == 0


WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "a number for the host": lambda x: x.sum().item(),
    "a mask as an index": lambda x: x[x > 3],
    "a copy to the host": lambda x: torch.empty(8).copy_(x),
    "a copy from pageable memory": lambda x: x.copy_(torch.zeros(8)),
}


@pytest.mark.parametrize("what", WAITING)
@pytest.mark.parametrize("executor", ["serial", "cuda"])
def test_a_node_that_waits_is_found(what: str, executor: str, gpu: torch.device) -> None:
    def body(ctx: object) -> None:
        WAITING[what](torch.arange(8.0, device=gpu))

    node = Node("work", (Op(),), (Op(run=body),), stream="compute")
    plan = compile_plan(StepGraph.build([node], []))
    with pytest.raises(NodeFailure) as failure:
        run(plan, executor=Strict(executor), steps=3)
    cause = failure.value.__cause__
    assert isinstance(cause, ContractViolation)
    assert cause.code == "SW-HIDDEN-SYNC"
    assert torch.cuda.get_sync_debug_mode() == 0
