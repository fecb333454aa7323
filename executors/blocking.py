"""Executors of host threads, on another device: each device op is done before the next one begins.

A kernel goes on after its call has returned. These executors take an op's return for its end, so
off the host each device op gets a wait for the device behind it. That is how the serial program
runs on the same device, which is the reference for what streams compute there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from ..backends import backend_of
from ..backends.executor_names import streams_behind
from ..graph.node import Op, OpContext
from ..graph.plan import Plan
from ..graph.step_graph import Vertex
from .on_streams import OnStreams
from .report import RunReport
from .run import Executor, executor_named
from .run_arguments import RunArguments
from .serial_recorded import OnOneThread
from .threads import OnThreads

RECORDING: Mapping[str, Callable[[int], Executor]] = MappingProxyType(
    {"serial": OnOneThread, "threads": OnThreads}
)
"""The executors of host threads that record segments."""


@dataclass(frozen=True)
class Blocking:
    """An executor: another one, whose device ops end when the device has done them."""

    executor: Executor
    device: torch.device

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        if given.course is None:
            return self.executor(self._waiting(plan), given)
        course = given.course.rewritten(self._waiting)
        return self.executor(course.plan, replace(given, course=course))

    def _waiting(self, plan: Plan) -> Plan:
        return replace(plan, graph=plan.graph.with_ops(self._awaited))

    def _awaited(self, vertex: Vertex) -> Op:
        """The op on this device: a thread of the executor's own begins on the first one."""
        body, backend = vertex.op.run, backend_of(self.device)
        if body is None:
            return vertex.op

        def run(context: OpContext) -> None:
            with backend.entered(self.device):
                body(context)
                if vertex.side == "device":
                    backend.synchronize(self.device)

        return replace(vertex.op, run=run)


def executor_on(
    device: torch.device, name: str, *, ranges: bool = False, graphs: bool = False, pieces: int = 0
) -> Executor:
    """The executor called `name`, as it runs where data lie on `device`.

    `ranges`, `graphs` and `pieces` are for one on streams: see `OnStreams`. Raises `StepweaveError`
    for a name that is none.
    """
    if streams_behind(name) is not None:
        return OnStreams(device, ranges=ranges, graphs=graphs, pieces=pieces)
    on_host = backend_of(device).on_host
    if graphs and on_host:
        return RECORDING[name](pieces)
    executor = executor_named(name)
    return executor if on_host else Blocking(executor, device)
