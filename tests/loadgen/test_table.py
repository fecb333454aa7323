"""The table reads as users know it."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stepweave.loadgen.load import Load, Result
from stepweave.loadgen.outcome import Outcome
from stepweave.loadgen.plot import plot_svg
from stepweave.loadgen.runner import Ran
from stepweave.loadgen.speculation import Counts
from stepweave.loadgen.summary import Summary
from stepweave.loadgen.table import table
from stepweave.loadgen.workload import RandomPrompts

GOLDEN = Path(__file__).parent / "golden"
RAN = Ran(
    (
        Outcome("a", 0.0, 0.0, 0.875, (0.25, 0.375, 0.875), 4, 10, 3),
        Outcome("b", 0.0, 0.0, 2.0, (1.0, 2.0), 2, 20),
        Outcome("c", 1.0, 1.0, 4.0, (1.5,), 1, None, error="out of memory"),
    ),
    0.0,
    4.0,
)
SPECULATION = Counts(40, 120, 60, (30, 20, 10))
SVG = "{http://www.w3.org/2000/svg}"


def matches_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_table_reads_as_it_did() -> None:
    text = table(
        Summary.of(RAN),
        " Serving Benchmark Result ",
        limit=8,
        rate=2.5,
        speculation=SPECULATION,
    )
    matches_golden("table.txt", text + "\n")


def test_what_was_not_asked_or_told_is_left_out() -> None:
    text = table(Summary.of(RAN, (75.5,)), "", rate=inf, speculation=Counts())
    assert "Cached input tokens:                     3\n" in text
    for absent in ("concurrency:", "RPS", "Speculative", "P99"):
        assert absent not in text
    assert "P75.5 TTFT (ms):" in text


def test_what_no_request_came_to_is_a_dash() -> None:
    text = table(Summary.of(Ran((), 0.0, 1.0)), "")
    assert "Mean TTFT (ms):                          -\n" in text
    assert text.count(" -\n") == 2 + 4 * 4, "tokens of prompts, too"


@pytest.mark.parametrize("ran", [RAN, Ran((), 0.0, 0.0), Ran(RAN.outcomes[:1], 0.0, 400.0)])
def test_the_plot_is_a_picture_of_its_own_with_every_figure(ran: Ran) -> None:
    result = Result(Load(RandomPrompts(1, 1), 3), ran, {"model_id": 'a <b> "c"'})
    root = ElementTree.fromstring(plot_svg(result))
    groups = [each for each in root.iter(f"{SVG}g") if each.get("class") == "latency"]
    measured = {key for key, each in result.summary.latencies.items() if each.count}
    assert len(groups) == 4 * len(measured)
    words = [each.text or "" for each in root.iter(f"{SVG}text")]
    mean = result.summary.latencies["e2el"].mean
    assert (f"mean {mean:,.2f}" in words) == ("e2el" in measured)
    assert any("failed" in word for word in words) == (result.summary.failed > 0)
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width", 0)) <= 760
