"""A device that a package brings, from the pipeline file on: nothing else has to know of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stepweave import LLM
from stepweave.executors.blocking import Blocking
from stepweave.executors.on_streams import OnStreams
from stepweave.executors.report import RunReport
from stepweave.executors.run import EXECUTORS, run
from stepweave.graph.node import Node, Op, OpContext
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.nodes.ops.transfer import pinned
from stepweave.requests.request import SamplingParams
from stepweave.testing import Strict
from stepweave.testing.devices.virtual_streams import VirtualStreams
from tests.device.emulated import BACKEND, DEVICE, Emulated

PARAMS = [
    SamplingParams(max_tokens=10),
    SamplingParams(max_tokens=8, temperature=0.9, seed=3, logprobs=1),
    SamplingParams(max_tokens=6, repetition_penalty=1.2),
]


def told(**overrides: str) -> tuple[LLM, list[object]]:
    llm = LLM(pipeline="async_ngram", overrides={"model.invariant": "true", **overrides})
    outputs = llm.generate(["The fox is a fox is a", "Ada is 41.", "Hello"], PARAMS)
    return llm, [(o.error, o.token_ids, o.accepted, repr(o.logprobs)) for o in outputs]


def test_a_pipeline_runs_on_the_streams_of_an_installed_device() -> None:
    here, expected = told(executor="serial", depth="1")
    there, found = told(executor="emulated", depth="3")
    assert found == expected
    assert there.engine.model.device == DEVICE
    states: dict[str, Any] = dict(there.engine._states)
    assert isinstance(states["kv"].keys[0], Emulated)
    runner = there.engine.runner()
    assert isinstance(runner, OnStreams)
    assert isinstance(runner._streams, VirtualStreams)
    assert there.engine.captures is None, "its backend says that it captures nothing"
    assert here.engine.model.device == torch.device("cpu")


def test_host_executors_run_there_too_and_wait_behind_each_device_op() -> None:
    llm = LLM(pipeline="async", overrides={"executor": "serial", "model.device": "emulated"})
    assert llm.engine.runner() == Blocking(EXECUTORS["serial"], DEVICE)


def test_buffers_are_pinned_by_the_backend_of_their_device() -> None:
    assert BACKEND.has_pinned(pinned(2, 3, fill=5, device=DEVICE))
    assert not BACKEND.has_pinned(pinned(2, 3, fill=5))


def strictly(body: object) -> RunReport:
    def work(ctx: OpContext) -> None:
        body(torch.ones(3, device=DEVICE))  # type: ignore[operator]

    graph = StepGraph.build([Node("work", (Op(),), (Op(run=work),), stream="compute")], [])
    return run(compile_plan(graph), executor=Strict(), steps=1)


def test_checking_mode_asks_it_to_refuse_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden: list[str] = []

    def forbid(self: object) -> object:
        forbidden.append("on")
        return lambda: forbidden.append("off")

    monkeypatch.setattr(type(BACKEND), "forbid_waits", forbid)
    strictly(lambda x: x + 1)
    assert forbidden == ["on", "off"]
