"""Questions about graphs whose nodes have rates: answers are in steps, and in declared names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from tests.cli.questions import data, text, words

RATED = """
version: 1
values: {x: {place: pinned}, y: {place: pinned}}
states: [{name: kv, keys: blocks}]
nodes:
  - {name: a, rate: 2, actor: t1, host: {writes: [x], cost_us: 30}}
  - name: b
    actor: t2
    host: {reads: [x, kv], writes: [y, kv], cost_us: 50, classes: {kv: own}}
  - name: c
    every: 4
    actor: t3
    host: {reads: [y, kv], writes: [kv], cost_us: 200, classes: {kv: swap}}
"""
"""A cycle of 4 steps, of 60 µs each: two times `a`."""

FASTER = """
version: 1
basis: assumed
describes: a machine that is ten times as fast
device: none
date: "2026-11"
batch: 1
ops:
  a.host: {rows: {1: 3}}
  b.host: {rows: {1: 5}}
  c.host: {rows: {1: 20}}
"""


@pytest.fixture
def rated(tmp_path: Path) -> Path:
    path = tmp_path / "rated.yaml"
    path.write_text(RATED)
    return path


@pytest.fixture
def faster(tmp_path: Path) -> Path:
    path = tmp_path / "faster.yaml"
    path.write_text(FASTER)
    return path


def test_what_rates_and_keys_gain_is_told_with_the_costs_of_the_plan(
    rated: Path, faster: Path
) -> None:
    """`c` in each step, and all users of a key of one class: both at the costs that are asked."""
    hints = words("whatif", rated)
    assert "rates: 3.33× the steps per second of a plan in which each node runs once" in hints
    assert "(200 µs a step)" in hints
    found = words("whatif", rated, "--costs", faster)
    assert found.startswith(f"{rated}: 6 µs a step")
    assert "rates: 3.33×" in found
    assert "(20 µs a step)" in found
    gains = {each["name"]: each["without_us"] for each in data("whatif", rated)["gains"]}
    less = {
        each["name"]: each["without_us"]
        for each in data("whatif", rated, "--costs", faster)["gains"]
    }
    assert gains.keys() == less.keys() == {"rates", "keys"}
    assert {name: us / 10 for name, us in gains.items()} == pytest.approx(less)


def test_slots_costs_and_classes_are_changed_by_their_declared_names(rated: Path) -> None:
    changed = data("whatif", rated, "--slots", "y=16")
    assert set(changed["after"]["slots"].values()) >= {16}
    swept = data("whatif", rated, "--sweep", "cost.a.host=30,60")["sweep"]
    assert [each["period_us"] / 4 for each in swept] == [60, 120]
    alike = data("whatif", rated, "--without", "keys")
    keys = next(each for each in data("whatif", rated)["gains"] if each["name"] == "keys")
    assert alike["after"]["period_us"] / 4 == keys["without_us"] > 60


def test_a_sweep_tells_times_of_a_step(rated: Path, tmp_path: Path) -> None:
    written = tmp_path / "out.csv"
    said = text("whatif", rated, "--sweep", "nodes.c.every=1,2,4", "-o", written)
    assert [line.split(",")[:3] for line in written.read_text().splitlines()[1:]] == [
        ["1", "200.0", "0.3"],
        ["2", "100.0", "0.6"],
        ["4", "60.0", "1"],
    ]
    assert "60 µs a step as configured" in said


def test_a_lease_is_told_in_steps(rated: Path) -> None:
    checked = words("show", rated)
    found = data("why", rated, "kv:own", "kv:swap")
    assert f"kv: own → swap after {found['steps']} steps" in checked
    said = words("why", rated, "kv:own", "kv:swap")
    assert f"from step i+{found['steps']} on" in said
    assert "a step is a cycle of 4" in said


def test_why_tells_what_a_wait_costs_in_a_step(rated: Path) -> None:
    assert "60 µs a step with or without it" in words("why", rated, "a#3", "b#1")


def test_simulated_tokens_are_those_of_steps(rated: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", f"{rated}", "--tokens-per-step", "1", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["tokens_per_second"] == pytest.approx(1e6 / 60, rel=0.02)
    assert found["tpot_us"] == pytest.approx(60, rel=0.02)


def test_a_trace_says_that_its_steps_are_cycles(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["trace", "seldom_statistics", "-o", f"{tmp_path / 'trace.json'}", "--html", f"{page}"]
    done = CliRunner().invoke(app, asked)
    assert "40 cycles of 4 steps simulated, not run; figures of cycles" in done.stdout
    assert "below, a step is such a cycle, and µs are of one" in done.stdout
    said = page.read_text()
    assert "<p>40 cycles of 4 steps simulated" in said
    assert "µs are per cycle, which is called a step below" in said
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert (found["steps"], found["cycle"]) == (40, 4)
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["cycle"] == "4"


TWO_TURNS = """
version: 1
values: {x: {place: pinned}}
nodes:
  - {name: a, rate: 2, actor: t1, host: {writes: [x], cost_us: 30}}
  - {name: b, actor: t2, host: {reads: [x], cost_us: 50}}
"""


@pytest.mark.parametrize(
    "name", ["", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("seldom_statistics",))]
)
def test_plans_of_firings_have_mutants(name: str, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(TWO_TURNS)
    done = CliRunner().invoke(app, ["check", name or f"{path}", "--mutate", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["ok"] is True
    assert found["classes"]["wait"]["killed"] > 0
    assert found["classes"]["access"]["killed"] > 0


def test_a_graph_whose_ops_take_no_time_is_simulated(tmp_path: Path) -> None:
    path = tmp_path / "free.yaml"
    path.write_text("version: 1\nnodes:\n  - {name: a, host: {cost_us: 0}}\n")
    for verb in (
        ["simulate"],
        ["simulate", "--tokens-per-step", "2"],
        ["trace", "-o", f"{tmp_path / 'trace.json'}"],
    ):
        done = CliRunner().invoke(app, [*verb, f"{path}"])
        assert done.exit_code == 0, done.output
