"""The decode step on a device that is not the CPU: the tokens of the CPU, by a GPU's rules."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.run import EXECUTORS, Executor
from stepweave.nodes.ops import inputs as model_inputs
from stepweave.testing.checking.memory import Walker
from stepweave.testing.devices.virtual_streams import Deferred
from tests.device.emulated import BACKEND, DEVICE, Emulated, Placed
from tests.device.pipelines import (
    DRAFTERS,
    Told,
    generated,
    llm_on,
    requests,
    served,
    tiny_on,
)

CPU = torch.device("cpu")
BELOW: dict[str, Executor] = {**EXECUTORS, "deferred": Deferred(3)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_gives_the_tokens_of_the_cpu(drafter: str) -> None:
    """The reference is the serial loop at depth 1; every other drafter has grammars beside it."""
    structured = list(DRAFTERS).index(drafter) % 2 == 1
    config = replace(DRAFTERS[drafter], structured=structured)
    expected = served(tiny_on(CPU, config, "serial"), requests(structured))
    engine = tiny_on(DEVICE, replace(config, depth=2), Placed(Deferred(3)))
    assert engine.model.device.type == "emulated"
    assert served(engine, requests(structured)) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["preemptions", "cached_tokens"])
def test_preempted_cached_and_chunked_requests_too(what: str) -> None:
    """Prompts in pieces, resumed rows with known next tokens, prefixes from the cache."""
    config = replace(
        DRAFTERS["eagle, unpadded"],
        structured=True,
        prefix_cache=True,
        num_blocks=16 if what == "preemptions" else 200,
        token_budget=12,
    )
    here = tiny_on(CPU, config, "serial")
    there = tiny_on(DEVICE, config, Placed(EXECUTORS["serial"]))
    tables = here.new_table(), there.new_table()
    for first in (0, 6) if what == "cached_tokens" else (0,):  # the same prompts again
        expected = served(here, requests(True, first), tables[0])
        assert served(there, requests(True, first), tables[1]) == expected
    assert getattr(there.totals, what) > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("below", ["serial", "threads", "deferred"])
def test_the_whole_pipeline_gives_the_tokens_of_the_cpu(below: str) -> None:
    config = load_config("async_eagle3_grammar")
    assert isinstance(config, PipelineConfig)
    llm = llm_on(DEVICE, config, Placed(BELOW[below]))
    assert generated(llm) == whole_on_the_cpu()
    assert llm.engine.totals.accepted > 0


@cache
def whole_on_the_cpu() -> Told:
    config = load_config("async_eagle3_grammar")
    assert isinstance(config, PipelineConfig)
    return generated(llm_on(CPU, config, "serial"))


def test_what_lives_across_steps_lies_on_the_device() -> None:
    config = replace(DRAFTERS["eagle3, rejection"], depth=2, structured=True)
    engine = tiny_on(DEVICE, config, "serial")
    values = engine.plan.graph.values
    progress: Any = values["progress"].initial
    drafts: Any = values["drafts"].initial
    states: dict[str, Any] = dict(engine._states)
    for tensor in (
        progress.last_token,
        drafts.tokens,
        states["kv"].keys[0],
        states["draft_kv"].values[0],
        states["history"].tokens,
        states["draft_probs"],
    ):
        assert isinstance(tensor, Emulated)
    for name in ("staging", "mask_host", "host_sampled", "host_drafts"):
        allocate = values[name].allocate
        assert allocate is not None
        buffer = allocate()
        tensors = [block.holder for block in Walker().blocks(buffer)]
        assert tensors
        assert all(
            isinstance(each, torch.Tensor) and BACKEND.has_pinned(each) for each in tensors
        ), name


def test_a_forgotten_upload_is_found() -> None:
    """What a CPU forgives: the staging buffers themselves as the inputs."""
    engine = tiny_on(DEVICE, DRAFTERS["none"], Placed(EXECUTORS["serial"]))
    with patch.object(model_inputs, "upload", lambda used, device: used.clone()):
        told = served(engine, requests(False))
    assert all("Misplaced: computes on the host" in str(each[3]) for each in told)


def test_a_scattered_upload_is_found() -> None:
    """Every other number of a buffer: torch would gather them in pageable memory, and wait."""
    engine = tiny_on(DEVICE, DRAFTERS["none"], Placed(EXECUTORS["serial"]))

    def every_other(used: torch.Tensor, device: torch.device) -> torch.Tensor:
        return used[::2].to(device, non_blocking=True, copy=True)

    with patch.object(model_inputs, "upload", every_other):
        told = served(engine, requests(False))
    assert all("Misplaced: scattered copy" in str(each[3]) for each in told)
