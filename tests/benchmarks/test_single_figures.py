"""A benchmark of one round, one prompt or one request says what there is to say, and no less."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import (
    acceptance,
    allowed_drafts,
    compile_time,
    cuts,
    draft_length,
    embedded,
    embedded_costs,
    grammars,
    interpreter,
    kv_cache_error,
    launches,
    neighbours,
    overlap,
    recorder,
    resumption,
    speculation,
    staging,
    start,
    strict,
    trees,
    ttft,
    workload,
)
from benchmarks.acceptance import Kept
from benchmarks.paired import Spread, at_least_one
from benchmarks.paired import cuts as parts_of
from benchmarks.peers import embedded as embedded_peers
from benchmarks.peers import environments, steady
from benchmarks.ttft import Latencies
from stepweave.configs.costs import load_costs
from stepweave.models import compiled

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
ONE_ROUND = ["--rounds", "1"]
SMALL = ["--vocab", "300"]

SHORT: dict[ModuleType, list[str]] = {
    acceptance: ["--prompts", "1", "--k", "1", "--limit", "2"],
    compile_time: [*ONE_ROUND, "--only", "async", "chain of 26"],
    cuts: [*ONE_ROUND, "--vocab", "60", "--rows", "1", "2"],
    embedded: ["--prompts", "1", "--stories", "1"],
    interpreter: [*ONE_ROUND, "--steps", "2", "--hash-kib", "0", "32"],
    kv_cache_error: ["--prompts", "1", "--limit", "4"],
    launches: ["--only", "plain"],
    neighbours: [*SMALL, "--limit", "2", "--backend", "llguidance", "--only", "two choices"],
    overlap: [
        *(*ONE_ROUND, *SMALL, "--rows", "1", "--tokens", "40"),
        *("--hidden", "64", "--layers", "1"),
    ],
    recorder: [*ONE_ROUND, "--max-tokens", "2"],
    resumption: ONE_ROUND,
    speculation: [*ONE_ROUND, "--warm", "1", "--prompts", "1", "--rows", "2", "--only", "n-gram"],
    staging: [*ONE_ROUND, "--rows", "1", "3", "--context", "64", "--tokens", "48"],
    start: [*ONE_ROUND, "--only", "check"],
    steady: [*ONE_ROUND, "--rows", "1", "--tokens", "4"],
    strict: [*ONE_ROUND, "--max-tokens", "2"],
    ttft: ["--load", "0.5", "--steps", "40", "--rows", "2"],
}
LONG: dict[ModuleType, list[str]] = {
    allowed_drafts: ["--prompts", "1", "--tokens", "4"],
    draft_length: [
        *ONE_ROUND,
        *("--engines", "1", "--warm", "1", "--rows", "1", "--longest", "1", "--prompts", "1"),
    ],
    embedded_peers: [*ONE_ROUND, "--warm", "1", "--prompts", "2"],
    grammars: [*ONE_ROUND, *SMALL, "--steps", "2", "--most-rows", "2", "--only", "ebnf"],
    launches: [],
    speculation: [*ONE_ROUND, "--warm", "1", "--prompts", "1"],
    trees: ["--prompts", "1", "--tokens", "4", "--budgets", "4"],
    ttft: ["--load", "0.5", "--real", "--real-load", "0.6", "--seconds", "3", *ONE_ROUND],
}
ELSEWHERE = {
    **{f"gpu/{each.stem}": "test_gpu_rehearsals" for each in BENCHMARKS.glob("gpu/*.py")},
    "agreement": "test_single_figures",
    "embedded_costs": "test_single_figures",
    "gloo_links": "test_gloo_links",
    "peers/__main__": "test_peers",
    "peers/environments": "test_single_figures",
    "serving": "test_serving",
    "stages": "test_stages",
    "third_party": "test_third_party",
}
"""Benchmarks with tests of their own, and the files of these."""

Run = Callable[[ModuleType, list[str]], dict[str, Any]]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs the `main` of a benchmark; what it wrote."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(compiled, "BACKEND", compiled.BACKEND)  # benchmarks choose their own
    little_text = SimpleNamespace(get_paths=lambda: {"stdlib": f"{BENCHMARKS}"})
    monkeypatch.setattr(workload, "sysconfig", little_text)  # tokenizers are trained in no time
    file = tmp_path / "result.json"

    def ran(benchmark: ModuleType, options: list[str]) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["benchmark", *options, "--json", str(file)])
        benchmark.main()
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    yield ran
    torch.set_num_threads(threads)
    capsys.readouterr()


def name_of(module: ModuleType) -> str:
    return module.__name__.removeprefix("benchmarks.").replace(".", "/")


@pytest.mark.parametrize("benchmark", SHORT, ids=name_of)
def test_a_benchmark_runs_with_one_of_each(
    benchmark: ModuleType, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "LIMIT", 16)  # it looks for prompts that it can compare, first
    assert run(benchmark, SHORT[benchmark])


@pytest.mark.nightly
@pytest.mark.parametrize("benchmark", LONG, ids=name_of)
def test_a_long_benchmark_runs_with_few_of_each(benchmark: ModuleType, run: Run) -> None:
    found = run(benchmark, LONG[benchmark])
    assert found
    for name, side in found.get("sides", {}).items():
        assert side["tokens_equal"], name


@pytest.mark.nightly
def test_the_costs_of_one_kind_are_measured_and_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "costs.yaml"
    shutil.copy(BENCHMARKS.parent / "configs" / "costs" / "embedded.yaml", path)
    options = ["--kinds", "ngram", "--rows", "1", *ONE_ROUND, "--output", str(path)]
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    embedded_costs.main()
    assert load_costs(path).file.kinds["ngram"]


@pytest.mark.nightly
def test_two_ranks_measure_what_agreeing_costs(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    options = [*ONE_ROUND, "--tokens", "4", "--layers", "1", "--json", str(file)]
    command = [*torchrun, "--standalone", "-m", "benchmarks.agreement", *options]
    subprocess.run(command, check=True, capture_output=True, cwd=BENCHMARKS.parent, timeout=300)
    assert json.loads(file.read_text())


def test_an_environment_that_is_there_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    monkeypatch.setattr(environments.Environment, "make", lambda env, _: made.append(env.name))
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "complete").touch()
    monkeypatch.setattr(sys, "argv", ["benchmark", "--environments", str(tmp_path)])
    environments.main()
    assert made == ["llama_cpp"]
    assert str(tmp_path / "openvino" / "bin" / "python") in capsys.readouterr().out


def test_every_benchmark_is_run_by_a_test() -> None:
    mains = {
        str(path.relative_to(BENCHMARKS).with_suffix(""))
        for path in BENCHMARKS.rglob("*.py")
        if path.parent.name != "workers"  # which benchmarks start
        and re.search(r"^(async )?def main\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert mains - {*map(name_of, (*SHORT, *LONG)), *ELSEWHERE} == set()
    for name in mains & ELSEWHERE.keys():
        text = (HERE / f"{ELSEWHERE[name]}.py").read_text(encoding="utf-8")
        folder, _, last = name.rpartition("/")
        assert re.search(rf"\b{last}\b", text), name
        assert re.search(rf"benchmarks.*{folder}", text), name


def test_every_benchmark_is_listed_for_readers() -> None:
    listed = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for benchmark in (*SHORT, *LONG):
        assert f"{benchmark.__name__}" in listed


def test_the_error_of_a_single_request_is_not_known() -> None:
    assert Kept([[1, 0, 2]]).to_json()["standard_error"] is None
    assert Kept([[1, 1], [3, 3]]).to_json()["standard_error"] == 1.0


def test_a_single_figure_is_its_own_quartiles() -> None:
    assert parts_of([3.0], 4) == [3.0, 3.0, 3.0]
    assert parts_of([1.0, 2.0, 3.0], 4) == [1.0, 2.0, 3.0]
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    assert interpreter.quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert Latencies.of([5.0], [2.0]) == Latencies(5.0, 5.0, 5.0, 2.0)


def test_none_of_something_is_refused_before_anything_runs() -> None:
    assert at_least_one("1") == 1
    for text in ("0", "-1", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="from 1 on"):
            at_least_one(text)
    with pytest.raises(SystemExit, match="no request got two tokens"):
        Latencies.of([], [])
