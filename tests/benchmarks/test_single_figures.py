"""A benchmark of one round, one prompt or one request says what there is to say, and no less."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import acceptance, cuts, interpreter, kv_cache_error, resumption, staging, start
from benchmarks.acceptance import Kept
from benchmarks.paired import Spread, at_least_one
from benchmarks.paired import cuts as parts_of
from benchmarks.peers import steady
from benchmarks.ttft import Latencies


@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        (acceptance, ["--prompts", "1", "--k", "1", "--limit", "2"]),
        (interpreter, ["--rounds", "1", "--steps", "2", "--hash-kib", "0", "32"]),
        (cuts, ["--rounds", "1", "--vocab", "60", "--rows", "1", "2"]),
        (start, ["--rounds", "1", "--only", "check"]),
        (staging, ["--rounds", "1", "--rows", "1", "3", "--context", "64", "--tokens", "48"]),
        (resumption, ["--rounds", "1"]),
        (kv_cache_error, ["--prompts", "1", "--limit", "4"]),
        (steady, ["--rounds", "1", "--rows", "1", "--tokens", "4"]),
    ],
    ids=lambda given: given.__name__.split(".")[-1] if isinstance(given, ModuleType) else "",
)
def test_a_benchmark_runs_with_one_of_each(
    benchmark: ModuleType,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["benchmark", *options, "--json", str(file)])
    benchmark.main()
    assert json.loads(file.read_text())
    capsys.readouterr()


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
