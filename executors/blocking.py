"""Executors that know nothing of a GPU, on a GPU: each device op is done before the next op begins.

A kernel goes on after its call has returned. The executors of host threads take an op's return for
its end, so on a GPU each device op gets a wait for the device behind it. That is how the serial
program runs on the same GPU, which is the reference for what streams compute there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..graph.node import Op, OpContext
from ..graph.plan import Plan
from ..graph.step_graph import Vertex
from .asked import Asked
from .cuda import Cuda, NoCuda
from .report import RunReport
from .run import Executor, executor_named


@dataclass(frozen=True)
class Blocking:
    """An executor: another one, whose device ops end when the GPU has done them."""

    executor: Executor
    gpu: torch.device

    def __call__(self, plan: Plan, asked: Asked) -> RunReport:
        return self.executor(replace(plan, graph=plan.graph.with_ops(self._awaited)), asked)

    def _awaited(self, vertex: Vertex) -> Op:
        """The op on this GPU: a thread of the executor's own begins on the first one."""
        body = vertex.op.run
        if body is None:
            return vertex.op

        def run(context: OpContext) -> None:
            with torch.cuda.device(self.gpu):
                body(context)
                if vertex.side == "device":
                    torch.cuda.synchronize(self.gpu)

        return replace(vertex.op, run=run)


def executor_on(device: torch.device, name: str) -> Executor:
    """The executor called `name`, as it runs where data lie on `device`.

    Raises `StepweaveError` for a name that is none.
    """
    executor = executor_named(name)
    if device.type != "cuda":
        return executor
    return Cuda(device) if name == "cuda" else Blocking(executor, device)


def device_called(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:1` as torch knows it. Raises `NoCuda` for a GPU that is not there."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there == 0:
        raise NoCuda(
            f"device {name!r} is a GPU, and this torch ({torch.__version__}) sees none. With "
            "executor 'threads' and device 'cpu' the same plan runs on a CPU."
        )
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= there:
        raise NoCuda(f"there is no GPU {name!r}: this torch sees {there}, from cuda:0 on")
    return torch.device("cuda", index)
