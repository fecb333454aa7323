"""Captured graphs on a GPU: the tokens of the same steps run as usual, nothing captured later."""

from __future__ import annotations

import pytest
import torch

from stepweave import LLM, SamplingParams
from stepweave.executors.on_streams import OnStreams
from tests.device.pipelines import SHIPPED
from tests.gpu.checks import replayed_as_usual


def graphs(name: str, depth: int = 2, layers: str = "off") -> LLM:
    overrides = {
        "executor": "cuda",
        "model.invariant": "false",
        "model.compile": layers,
        "depth": str(depth),
    }
    return LLM(pipeline=name, overrides=overrides)


@pytest.mark.parametrize("name", SHIPPED)
def test_replayed_steps_give_what_they_give_as_usual(name: str, gpu: torch.device) -> None:
    replayed_as_usual(graphs(name), OnStreams(gpu))


def test_compiled_layers_in_replayed_steps_give_what_they_give_as_usual(gpu: torch.device) -> None:
    """Of one pipeline: compiling takes longer than all the others together."""
    replayed_as_usual(graphs("async_eagle3_grammar", layers="layer"), OnStreams(gpu))


def test_after_warming_up_nothing_is_captured_any_more() -> None:
    llm = graphs("async_eagle3_grammar")
    llm.warm_up()
    captures = llm.engine.captures
    assert captures is not None
    before = {segment: counts.captured for segment, counts in captures.counts.items()}
    assert all(before.values()), captures.notes()
    llm.generate(["Write a short story about a fox."] * 3, SamplingParams(max_tokens=64))
    assert {segment: counts.captured for segment, counts in captures.counts.items()} == before


def test_graphs_do_not_hold_memory_for_each_run(gpu: torch.device) -> None:
    llm = graphs("quickstart", depth=3)
    llm.warm_up()
    allocated = []
    for _ in range(4):
        llm.generate(["Write a short story about a fox."] * 4, SamplingParams(max_tokens=32))
        torch.cuda.synchronize(gpu)
        allocated.append(torch.cuda.memory_allocated(gpu))
    assert max(allocated[1:]) - min(allocated[1:]) < 1 << 20


def test_graphs_work_in_memory_that_nobody_else_frees(gpu: torch.device) -> None:
    """`torch.compile` has the workspaces of all streams freed around captures of its own."""
    llm = graphs("async_eagle3_grammar")
    llm.warm_up()
    lines, params = ["Write a short story about a fox."] * 3, SamplingParams(max_tokens=48)
    expected = [each.token_ids for each in llm.generate(lines, params)]
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    theirs = torch.zeros(1 << 28, dtype=torch.uint8, device=gpu)
    assert [each.token_ids for each in llm.generate(lines, params)] == expected
    assert not theirs.any()
