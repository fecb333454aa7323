"""What the simulation of clusters says of two gloo ranks, against what was measured with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gloo_links
from benchmarks.gloo_links import fitted, predicted
from benchmarks.gloo_ranks import GROUPS, SIZES, Shape
from tests.installed import ROOT

MARGIN = 0.1
KEPT = json.loads((ROOT / "benchmarks" / "results" / "gloo_links.json").read_text())


def test_steps_of_two_ranks_are_predicted_from_their_links_within_a_tenth() -> None:
    measured, shape = KEPT["measured_us"], Shape(**KEPT["shape"])
    said = predicted(measured, shape)
    assert said == pytest.approx(KEPT["predicted_us"])
    for step, us in said.items():
        assert us == pytest.approx(measured[step], rel=MARGIN), step
    assert set(said) == {"pair", *(f"pipeline {groups}" for groups in GROUPS)}


def test_a_second_group_hides_most_of_a_stage_as_predicted() -> None:
    measured, said = KEPT["measured_us"], KEPT["predicted_us"]
    for figures in (measured, said):
        assert figures["pipeline 1"] / figures["pipeline 2"] >= 1.7


def test_a_link_is_fitted_to_its_smallest_and_largest_data() -> None:
    times = {size: 100 + size / 1e3 for size in SIZES}  # 100 µs, 1 GB/s
    measured = {
        f"{what} {size}": us for what in ("all_reduce", "message") for size, us in times.items()
    }
    link = fitted(measured)
    assert link.gb_s == pytest.approx(1)
    assert link.latency_us == pytest.approx(100, rel=1e-3)
    assert link.all_reduce["gloo"].gb_s == pytest.approx(1)


def test_the_benchmark_runs_with_two_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    tiny = "--rounds 1 --layers 1 --hidden 64 --steps 3 --product-us 10 --stage-us 10"
    monkeypatch.setattr(sys, "argv", ["benchmark", *tiny.split(), "--json", str(file)])
    gloo_links.main()
    assert set(json.loads(file.read_text())["predicted_us"]) == set(KEPT["predicted_us"])
    capsys.readouterr()
