"""The comparison with peers, rehearsed: its sides in this process, its processes with a stub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

from benchmarks.peers import __main__ as command
from benchmarks.peers import running
from benchmarks.peers.cells import OPPONENTS, Cell, Side, chosen, grid, toy
from benchmarks.peers.running import Ended, Limits, compared, started, work_of
from benchmarks.peers.shapes import SHAPES, checkpoint
from benchmarks.peers.workers import stepweave_side, transformers_side

IN_THIS_ENVIRONMENT = {
    "stepweave_side": stepweave_side,
    "transformers_side": transformers_side,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    checkpoint(SHAPES["toy"], folder)
    return folder


def started_here(side: Side, work: dict[str, Any]) -> Any:
    threads = torch.get_num_threads()
    try:
        return IN_THIS_ENVIRONMENT[side.module].start({**work, **side.told})
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "name",
    [
        "generate",
        "assisted",
        pytest.param("generate_batch", marks=pytest.mark.nightly),
        pytest.param("lookup", marks=pytest.mark.nightly),
    ],
)
def test_ours_and_the_opponent_give_the_same_tokens(
    name: str, models: Path, tmp_path: Path
) -> None:
    batch = 1 if name in ("assisted", "lookup") else 2
    (cell,) = (each for each in toy() if each.name == f"toy/float32/b{batch}/p8/{name}")
    work = work_of(cell, models, tmp_path, threads=1)
    tokens = []
    for side in (cell.opponent.ours, cell.opponent.side):
        run, _ = started_here(side, work)
        tokens.append(run())
    assert [len(row) for row in tokens[0]] == [cell.tokens] * batch
    assert len({token for row in tokens[0] for token in row}) > 3, "no token over and over"
    assert compared(*tokens)["equal"], tokens


def test_the_first_layers_draft_some_of_the_tokens(models: Path) -> None:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    target, draft = (
        auto.from_pretrained(models / "toy" / name, dtype=torch.float32)
        for name in ("target", "draft")
    )
    ids = torch.randint(1, 2048, (1, 64), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        same = target(ids).logits.argmax(-1) == draft(ids).logits.argmax(-1)
    assert 0.4 < same.float().mean() < 1


# -- processes


STUB = """
import os
def start(work):
    if work.get("dies"):
        raise SystemExit("no such model")
    print("what a library prints is no answer")
    held = bytearray(os.urandom(work["mib"] << 20))
    return lambda: [[work["mib"]]], {"pid": os.getpid()}
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Side:
    """A side that needs no library, so that its process starts at once."""
    (tmp_path / "stub_side.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Side("stub_side", {"mib": 1})


FAR = Limits(seconds=60, gib=4)


def test_a_worker_answers_in_a_process_of_its_own(stub: Side, tmp_path: Path) -> None:
    with started("ours", stub, {}, tmp_path, FAR) as worker:
        loaded = worker.ask(None, monotonic() + 60)
        done = worker.ask("run", monotonic() + 60)
    assert loaded["about"]["pid"] > 0
    assert done["tokens"] == [[1]]
    assert done["seconds"] >= 0
    assert done["peak_bytes"] > 1 << 20


def test_a_worker_that_dies_says_why(stub: Side, tmp_path: Path) -> None:
    with (
        started("theirs", stub, {"dies": True}, tmp_path, FAR) as worker,
        pytest.raises(Ended, match="theirs: no such model"),
    ):
        worker.ask(None, monotonic() + 60)


def test_a_worker_is_ended_at_its_limits(
    stub: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.01)
    silent = Side("silent_side")
    (tmp_path / "silent_side.py").write_text("def start(work):\n    input()\n    input()\n")
    with started("ours", silent, {}, tmp_path, FAR) as worker:
        with pytest.raises(Ended, match="limit of time"):
            worker.ask(None, monotonic() - 1)
        worker._limits = Limits(seconds=60, gib=0.001)
        with pytest.raises(Ended, match="GiB of memory"):
            worker.ask(None, monotonic() + 60)


def test_both_sides_run_in_turn_and_the_ratio_is_theirs_over_ours(
    stub: Side, tmp_path: Path
) -> None:
    opponent = replace(OPPONENTS[0], ours=stub, side=Side("stub_side", {"mib": 2}))
    cell = Cell(SHAPES["toy"], "float32", 1, 8, 1, opponent)
    held = running.measured(cell, {}, tmp_path, rounds=3, limits=FAR)
    assert held["rounds"] == 3
    assert held["tokens"] == {"equal": False, "rows_equal": 0, "rows": 1, "first_difference": 0}
    assert held["sides"].keys() == {"ours", "generate"}
    assert held["theirs_over_ours"]["median"] > 0


def test_a_long_first_round_counts(
    stub: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LONG_S", -1.0)
    cell = Cell(SHAPES["toy"], "float32", 1, 8, 1, replace(OPPONENTS[0], ours=stub, side=stub))
    asked: list[str | None] = []
    ask = running.Worker.ask

    def noted(self: running.Worker, command: str | None, until: float) -> dict[str, Any]:
        asked.append(command)
        return ask(self, command, until)

    monkeypatch.setattr(running.Worker, "ask", noted)
    held = running.measured(cell, {}, tmp_path, rounds=1, limits=FAR)
    assert held["rounds"] == 1
    assert asked.count("run") == 2, "once a side"


# -- the command


def measured_as(number: float) -> dict[str, Any]:
    spread = {"median": number, "low": number, "high": number}
    return {
        "theirs_over_ours": spread,
        "tokens": {"equal": True, "rows_equal": 1, "rows": 1},
        "most_mib": 400,
        "sides": {"ours": {"tokens_per_s": 1.0, "peak_mib": 350}, "theirs": {"tokens_per_s": 2.0}},
    }


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measures nothing; the names of the cells that were asked for."""
    asked: list[str] = []

    def measured(cell: Cell, *_: object, **__: object) -> dict[str, Any]:
        asked.append(cell.name)
        if "generate_batch" in cell.name:
            raise Ended("generate_batch: ended at its limit of time")
        return measured_as(2.5)

    monkeypatch.setattr(command, "work_of", lambda *_: {})
    monkeypatch.setattr(command, "measured", measured)
    return asked


def test_cells_are_saved_one_by_one_and_not_measured_again(
    measuring: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cells.json"
    places = ["--json", str(file), "--environments", str(tmp_path), "--models", str(tmp_path)]
    command.main(["--toy", *places, "--only", "toy/float32/b1/p8/generate"])
    assert list(json.loads(file.read_text())["cells"]) == ["toy/float32/b1/p8/generate"]
    command.main(["--toy", *places, "--only", "toy/float32/b1/*"])
    assert measuring.count("toy/float32/b1/p8/generate") == 1
    cells = json.loads(file.read_text())["cells"]
    assert cells["toy/float32/b1/p8/generate_batch"]["failed"].endswith("limit of time")
    said = capsys.readouterr().out
    assert "toy/float32/b1/p8/llama_cpp: left out, without the environment llama_cpp" in said
    command.main(["--toy", *places, "--table"])
    row = capsys.readouterr().out.splitlines()[2]
    five = " | ".join([(figure := "2.50 [2.50 2.50]"), "failed", figure, figure, figure])
    assert row == f"| toy/float32/b1/p8 | {five} |  |  | 1.0 | 350 (400) |"


def test_memory_is_bounded_by_what_a_model_and_its_cache_need() -> None:
    cell = next(each for each in grid() if each.name == "llama-1b/bfloat16/b4/p1024/generate")
    weights = 16 * (2048 * 64 * 2 * 40 + 3 * 2048 * 8192) + 2048 * 128256
    cache = 16 * 2 * 8 * 64 * 4 * (1024 + 48)
    assert cell.most_mib() == round((1.1 * 2 * (weights + cache) + 300e6) / 2**20)


def test_a_quick_run_keeps_nothing_unless_told_where(
    measuring: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results" / "peers.json")
    command.main(["--quick", "--models", str(tmp_path), "--only", "*/float32/b1/p64/generate"])
    assert len(measuring) == 3
    assert not (tmp_path / "results").exists()


def test_a_name_that_no_cell_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--toy", "--only", "smollm"])
    assert "no cell is called 'smollm'; --list has the names" in capsys.readouterr().err


def test_the_grid_has_every_setting_once_and_lone_opponents_at_batch_one() -> None:
    cells = grid()
    names = [cell.name for cell in cells]
    assert len(names) == len(set(names)) == 3 * 2 * 2 * (3 * 5 + 2)
    assert all(cell.batch == 1 for cell in cells if cell.opponent.alone)
    assert chosen(names, ["qwen3-0.6b/bfloat16/b16/p1024/*"])[0].endswith("generate")
    assert all(cell.expected_s(5, 2) > 0 for cell in cells)


@pytest.mark.nightly
def test_the_command_runs_whole(tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    places = ["--json", str(file), "--models", str(tmp_path), "--environments", str(tmp_path)]
    cells = command.main(["--toy", "--rounds", "1", "--threads", "1", *places])
    assert len(cells) == 2 * (5 + 3)
    assert not [name for name, held in cells.items() if "failed" in held]
    assert all(held["tokens"]["equal"] for held in cells.values())
