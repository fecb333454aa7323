"""The benchmark of servers: it starts one, loads it, and says what came of it; and its ratios."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import serving

pytest.importorskip("aiohttp")


def test_it_starts_a_server_loads_it_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    options = ["--alone", "--ours", "synchronous", "--models", "embedded", "--streams", "2"]
    options += ["--rounds", "1", "--requests", "1", "--tokens", "4", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    serving.main()
    found = json.loads(file.read_text())["models"]["embedded"]["2"]["synchronous"]
    assert found["output_tokens"] == 2 * 4
    assert all(found[key] > 0 for key in serving.FIGURES)
    assert "embedded    2 streams  synchronous" in capsys.readouterr().out


def test_ratios_are_of_the_same_round_and_nothing_is_divided_by_zero() -> None:
    def round_of(rate: float, gap_ms: float) -> dict[str, float]:
        return {
            "output_throughput": rate,
            "median_ttft_ms": 8.0,
            "median_itl_ms": gap_ms,
            "p99_itl_ms": 2.0,
            "total_output_tokens": 5,
        }

    said = serving.told(
        {
            "async": [round_of(30, 1), round_of(80, 1), round_of(90, 1)],
            serving.THEIRS: [round_of(10, 0), round_of(40, 1), round_of(90, 1)],
        }
    )
    times = said["async"]["times_theirs"]
    assert times["output_throughput"]["median"] == 2  # of 3, 2 and 1
    assert times["p99_itl_ms"]["median"] == 1
    assert "median_itl_ms" not in times  # a round of theirs has no gaps
    assert said[serving.THEIRS]["output_tokens"] == 15
    assert "times_theirs" not in said[serving.THEIRS]
