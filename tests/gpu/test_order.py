"""Nothing on a GPU relies on luck: streams that are held up, and one that looks for races."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from stepweave.executors import run
from stepweave.executors.on_streams import OnStreams
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.planner.compile import compile_plan
from stepweave.testing.unverified import run_unverified
from tests.device.pipelines import Told
from tests.gpu.checks import (
    Shipped,
    Surrounded,
    device_ops,
    handed_over,
    held_up,
    pipeline,
)

CYCLES = 3_000_000  # one to two milliseconds: longer than a step of the embedded model

spin = partial(torch.cuda._sleep, CYCLES)


@pytest.fixture(scope="module", params=[2, 3], ids=["depth 2", "depth 3"])
def shipped(request: pytest.FixtureRequest) -> tuple[Shipped, Told]:
    """The pipeline with everything, and its tokens in order."""
    config = pipeline("async_eagle3_grammar", depth=request.param)
    loaded = Shipped(torch.device("cuda", 0), config)
    return loaded, loaded.tokens("serial")


@pytest.mark.parametrize("op", device_ops(pipeline("async_eagle3_grammar")))
def test_whichever_op_is_late_the_tokens_are_the_same(
    op: str, shipped: tuple[Shipped, Told]
) -> None:
    loaded, in_order = shipped
    assert loaded.tokens(Surrounded(OnStreams("cuda"), held_up(op, spin))) == in_order


def test_a_late_stream_shows_a_wait_that_is_missing(gpu: torch.device) -> None:
    """What the tests above would see: the host reads before the copy has come."""
    plan = compile_plan(handed_over(gpu, spin))
    right = [[step] * 8 for step in range(6)]
    assert run(plan, executor="cuda", steps=6, keep=["read"]).kept["read"][-6:] == right
    loose = replace(plan, waits=())
    assert run_unverified(loose, "cuda", RunArguments(6, keep=["read"])).kept["read"][-6:] != right


REFEREE = """
import sys
from dataclasses import replace
from torch.cuda import _sanitizer
import torch
from stepweave.executors.run_arguments import RunArguments
from stepweave.executors.on_streams import OnStreams
from stepweave.graph.planner.compile import compile_plan
from stepweave.testing import run_unverified
from tests.gpu.checks import Shipped, Surrounded, handed_over, pipeline

mode = _sanitizer.cuda_sanitizer.dispatch
mode.__enter__()  # for this thread; below, for each that launches
refereed = Surrounded(OnStreams("cuda"), lambda name: mode)
gpu = torch.device("cuda", 0)
if sys.argv[1] == "loose":
    plan = compile_plan(handed_over(gpu, lambda: None))
    run_unverified(replace(plan, waits=()), refereed, RunArguments(steps=20))
else:
    for depth in (1, 2, 3):
        Shipped(gpu, pipeline(sys.argv[1], depth=depth)).tokens(refereed)
print("done")
"""


def refereed(what: str) -> subprocess.CompletedProcess[str]:
    """torch's CUDA stream sanitizer watches every operation and event of a run."""
    paths = os.pathsep.join(filter(None, ["", *sys.path]))
    return subprocess.run(
        [sys.executable, "-c", REFEREE, what],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("name", ["async_eagle3_grammar", "drafter_stream"])
def test_the_sanitizer_of_torch_finds_no_race(name: str) -> None:
    found = refereed(name)
    assert found.returncode == 0, found.stderr[-4000:]
    assert "CSAN" not in found.stderr
    assert found.stdout.strip() == "done"


def test_the_sanitizer_finds_the_race_of_a_plan_without_waits() -> None:
    found = refereed("loose")
    assert found.returncode != 0
    assert "CUDASanitizerErrors" in found.stderr
