"""The benchmark of stages predicts from what each rank took, and runs."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest

from benchmarks import stages
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.stages import for_stages
from stepweave.serving.pipeline import step_graph

HOST = {"schedule.host": 100.0, "prepare_inputs.host": 100.0, "forward.host": 10.0}
DEVICE = {"prepare_inputs.device": 50.0, "d2h_copy.device": 20.0}


def test_a_period_is_predicted_from_what_each_rank_took() -> None:
    took = {
        0: {
            **HOST,
            **DEVICE,
            "forward.device": 9000.0,
            "send0.device.leave": 300.0,
            "tell.device.leave": 8000.0,
        },
        1: {
            **HOST,
            **DEVICE,
            "forward.device": 4000.0,
            "sample.device": 500.0,
            "send0.device.leave": 9000.0,
            "tell.device.leave": 200.0,
        },
    }
    costs = stages.costs_of(took)
    assert costs["forward@0.device"] == 9000.0
    assert costs["send0@1.device.leave"] == 300.0, "not what the receiver waits for it"
    assert costs["tell@0.device.leave"] == 200.0
    config = load_config("base", for_stages(stages.STAGES, {"depth": 1}) | {"depth": 1})
    assert isinstance(config, PipelineConfig)
    assert costs.keys() <= step_graph(config).vertices.keys(), "each is of an op"
    one, two = stages.predicted_us(1, costs), stages.predicted_us(2, costs)
    assert 9000 + 4000 + 500 + 300 + 200 < one < 16000, "all of it, one after another"
    assert two == pytest.approx(9050, rel=0.01), "the slower stage"


def test_a_rank_that_fails_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "LOOK_S", 0.0)
    killed: list[int] = []
    ranks = [
        SimpleNamespace(exitcode=status, kill=partial(killed.append, rank))
        for rank, status in enumerate((None, 1))
    ]
    with pytest.raises(RuntimeError, match="a rank has ended with status 1"):
        list(stages._answers(Queue(), ranks))
    assert killed == [0, 1]


@pytest.mark.nightly
def test_it_runs_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "result.json"
    options = ["--rounds", "1", "--tokens", "3", "--wait-ms", "1"]
    monkeypatch.setattr(sys, "argv", ["benchmark", *options, "--json", str(file)])
    stages.main()
    found = json.loads(file.read_text())
    assert all(found[f"K = {groups}"]["period_us"] > 0 for groups in stages.GROUPS)
