"""Which device a pipeline runs on: what the config says, what is refused, and by whom it is run."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from stepweave import LLM
from stepweave.backends import device_called
from stepweave.backends.shipped.cuda import NoCuda
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors import NodeFailure, run
from stepweave.executors.blocking import Blocking, executor_on
from stepweave.executors.errors import ContractViolation
from stepweave.executors.on_streams import OnStreams
from stepweave.executors.run import EXECUTORS
from stepweave.graph.node import Node, Op, OpContext
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.models.errors import ModelError
from stepweave.nodes.draft_model import DRAFT_MODEL
from stepweave.serving.engine import EngineError
from stepweave.testing.checking.mode import Strict
from stepweave.testing.checking.monitor import TorchRefuses
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.engines import TinyConfig, tiny_engine
from tests.device.emulated import DEVICE
from tests.device.fake_cuda import FakeCuda
from tests.device.pipelines import DRAFTERS, tiny_on

GPU = torch.device("cuda", 0)


def config(**overrides: str) -> PipelineConfig:
    loaded = load_config(
        "async", {key.replace("__", "."): value for key, value in overrides.items()}
    )
    assert isinstance(loaded, PipelineConfig)
    return loaded


def test_the_device_follows_the_executor_unless_it_is_named() -> None:
    assert config().device == "cpu"
    assert config(executor="cuda").device == "cuda"
    assert config(executor="serial", model__device="cuda:1").device == "cuda:1"
    assert config(executor="cuda", model__device="cuda:0").device == "cuda:0"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"executor": "cuda", "model__device": "cpu"},
            "executor cuda runs on the streams of a device cuda",
        ),
        ({"model__device": "gpu"}, "model.device"),
        ({"model__device": "cuda:"}, "model.device"),
        ({"executor": "coda"}, "executor"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_key(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**overrides)


def test_without_a_gpu_everything_that_asks_for_one_says_so() -> None:
    with patch.object(torch.cuda, "is_available", lambda: False):
        for asked in ({"executor": "cuda"}, {"model.device": "cuda:3"}):
            with pytest.raises(NoCuda, match="sees none"):
                LLM(pipeline="async", overrides=asked)
    assert device_called("cpu") == torch.device("cpu")


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "device_count", lambda: 2),
        patch.object(torch.cuda, "current_device", lambda: 1),
    ):
        assert device_called("cuda") == torch.device("cuda", 1)
        assert device_called("cuda:0") == GPU
        with pytest.raises(NoCuda, match="no GPU 'cuda:2': this torch sees 2"):
            device_called("cuda:2")


def test_an_engine_refuses_models_that_lie_elsewhere() -> None:
    with pytest.raises(EngineError, match="executor 'cuda' runs on the streams of a device 'cuda'"):
        tiny_engine(TinyConfig(executor="cuda"))
    engine = tiny_on(DEVICE, DRAFTERS["draft model"], "serial")
    here = tiny_engine(TinyConfig())
    there = {DRAFT_MODEL: engine.resource(DRAFT_MODEL)}
    with pytest.raises(ModelError, match="the drafter is on emulated"):
        replace(engine, model=here.model, resources=there, executor="serial")


def test_on_a_gpu_host_executors_wait_behind_each_device_op_and_cuda_does_not() -> None:
    assert executor_on(GPU, "cuda") == OnStreams(GPU)
    assert executor_on(GPU, "serial") == Blocking(EXECUTORS["serial"], GPU)
    assert executor_on(torch.device("cpu"), "threads") is EXECUTORS["threads"]
    done: list[str] = []
    node = Node("work", (Op(run=lambda ctx: done.append("host")),), (), stream=None)
    late = Node("late", (Op(),), (Op(run=lambda ctx: done.append("device")),), stream="compute")
    plan = compile_plan(StepGraph.build([late, node], [], order="keep"))

    def wait(gpu: torch.device) -> None:
        done.append(f"{gpu}")

    with patch.multiple(torch.cuda, synchronize=wait, device=FakeCuda().device):
        run(plan, executor=executor_on(GPU, "serial"), steps=2)
    assert done == ["device", "cuda:0", "host"] * 2


def test_an_executor_of_ones_own_is_taken_as_it_is() -> None:
    engine = tiny_on(torch.device("cpu"), TinyConfig(), own := Deferred(1))
    assert engine.runner() is own


def test_what_torch_refuses_on_a_gpu_is_reported_as_a_hidden_wait() -> None:
    def body(ctx: OpContext) -> None:
        raise RuntimeError("called a synchronizing CUDA operation")

    graph = StepGraph.build([Node("work", (Op(),), (Op(run=body),), stream="compute")], [])
    with pytest.raises(NodeFailure) as failure:
        run(compile_plan(graph), executor=Strict(), steps=1)
    cause = failure.value.__cause__
    assert isinstance(cause, ContractViolation)
    assert cause.code == "SW-HIDDEN-SYNC"
    assert "allow_sync" in f"{cause}"


class Switch:
    """torch's refusal to wait, which is one for the whole process."""

    def __init__(self) -> None:
        self.mode: object = 0

    def is_on(self) -> bool:
        return self.mode == "error"

    def is_initialized(self) -> bool:
        return True

    def get_sync_debug_mode(self) -> object:
        return self.mode

    def set_sync_debug_mode(self, mode: object) -> None:
        self.mode = mode


def test_the_refusal_to_wait_holds_while_anybody_wants_it_and_is_put_back() -> None:
    switch, refusal = Switch(), TorchRefuses()
    with patch.object(torch, "cuda", switch):
        refusal.count(wanted=1)
        refusal.count(wanted=1)
        refusal.count(wanted=-1)
        assert switch.is_on(), "the other thread's op still goes on"
        with refusal.waiting():
            assert not switch.is_on(), "code that may wait"
            refusal.count(wanted=1)
            assert not switch.is_on()
        assert switch.is_on()
        refusal.count(wanted=-1)
        refusal.count(wanted=-1)
        assert not switch.is_on()
        with refusal.waiting():
            assert not switch.is_on()
        assert not switch.is_on()
