"""On the same GPU, streams give the tokens of the serial program, at every depth."""

from __future__ import annotations

import gc

import pytest
import torch

from stepweave import LLM
from stepweave.nodes.draft_model import DRAFT_MODEL
from tests.device.pipelines import DRAFTERS, SHIPPED
from tests.gpu.checks import Shipped, pipeline, tiny_tokens


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_pipeline(name: str, depth: int, gpu: torch.device) -> None:
    """Greedy and seeded requests, in float32; drafted and accepted counts too."""
    shipped = Shipped(gpu, pipeline(name, depth=depth))
    assert shipped.tokens("cuda") == shipped.tokens("serial")


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_and_everything_a_request_can_ask(
    drafter: str, depth: int, gpu: torch.device
) -> None:
    assert tiny_tokens(gpu, drafter, depth, "cuda") == tiny_tokens(gpu, drafter, depth, "serial")


def test_every_run_gives_the_same(gpu: torch.device) -> None:
    shipped = Shipped(gpu, pipeline("async_eagle3_grammar", depth=3))
    first = shipped.tokens("cuda")
    assert all(shipped.tokens("cuda") == first for _ in range(5))


def test_worker_threads_on_a_gpu_give_the_same(gpu: torch.device) -> None:
    shipped = Shipped(gpu, pipeline("async_eagle3_grammar"))
    assert shipped.tokens("threads") == shipped.tokens("serial")


def test_one_setting_puts_a_pipeline_on_the_gpu() -> None:
    llm = LLM(pipeline="quickstart", overrides={"executor": "cuda"})
    assert llm.engine.model.device.type == "cuda"
    drafter = llm.engine.resource(DRAFT_MODEL)
    assert drafter is not None
    assert drafter.device == llm.engine.model.device
    output = llm.generate(["Write a short story about a fox named Ida."])[0]
    assert output.error is None
    assert "fox" in output.text


def test_memory_of_the_gpu_does_not_grow(gpu: torch.device) -> None:
    shipped = Shipped(gpu, pipeline("async_eagle3_grammar", depth=3))
    allocated = []
    for _ in range(4):
        shipped.tokens("cuda")
        gc.collect()  # an engine that is renewed leaves cycles
        torch.cuda.synchronize(gpu)
        allocated.append(torch.cuda.memory_allocated(gpu))
    assert max(allocated[1:]) - min(allocated[1:]) < 1 << 20
