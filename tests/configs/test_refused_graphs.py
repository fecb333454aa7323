"""Graphs of several ranks that ship because they are wrong: refused, each with a sound repair.

What each is made after is in its file.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from stepweave.cli.planned import planned
from stepweave.configs.load import load_config
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import listing_programs, with_streams
from stepweave.graph.verifier.blocking import run_blocking
from stepweave.graph.verifier.verify import violations
from tests.installed import ROOT

FOLDER = ROOT / "configs" / "graphs" / "refused"
CODES = {
    "crossed_calls": "SW-MATCH",
    "crossed_collectives": "SW-DEADLOCK",
    "crossed_sends": "SW-CHANNEL",
    "lost_send": "SW-CONFIG",
    "own_replay": "SW-OWN",
    "own_width": "SW-OWN",
    "side_feedback": "SW-CHANNEL",
    "side_feedback_shared": "SW-MATCH",
    "small_feedback": "SW-CHANNEL",
}


def checked(path: Path, *more: str) -> str:
    return CliRunner().invoke(app, ["check", str(path), *more]).output


def test_every_file_is_refused_or_a_repair_of_one() -> None:
    names = {path.name.partition(".")[0] for path in FOLDER.glob("*.yaml")}
    assert names == set(CODES)


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_a_wrong_graph_is_refused_with_its_reason_and_line(name: str, code: str) -> None:
    said = checked(FOLDER / f"{name}.yaml")
    assert f"FAILED [{code}]" in said
    assert re.search(rf"{name}\.yaml:\d+:\d+: ", said), said


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.sound.yaml")), ids=lambda path: path.stem)
def test_its_repair_is_sound(path: Path) -> None:
    plan = planned(str(path))
    assert not violations(plan)
    assert run_blocking(plan) is None


@pytest.mark.parametrize("name", [n for n, c in CODES.items() if c not in ("SW-OWN", "SW-CONFIG")])
def test_what_ranks_do_to_each_other_is_seen_by_running_it(name: str) -> None:
    """The second opinion on the files: run as they block, they stick or mismatch."""
    graph = load_config(FOLDER / f"{name}.yaml").step_graph()  # type: ignore[union-attr]
    actors = with_streams(graph, listing_programs(graph))
    blocked = run_blocking(Plan(graph, actors, (), (), (), {}, 0.0, ()))
    assert blocked is not None
    assert blocked.code == ("SW-MATCH" if CODES[name] == "SW-MATCH" else "SW-DEADLOCK")


@pytest.mark.parametrize("name", [name for name, code in CODES.items() if code == "SW-CHANNEL"])
def test_the_capacity_that_is_said_to_do_does_and_one_less_does_not(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    capacity, node = re.findall(r"capacity of (\d+) for '(\w+)'", " ".join(checked(path).split()))[
        0
    ]
    key = f"nodes.{node}.message.capacity"
    assert "sound" in checked(path, "--set", f"{key}={capacity}")
    assert "SW-CHANNEL" in checked(path, "--set", f"{key}={int(capacity) - 1}")
    config = load_config(path, {key: "derived"})
    assert f"'{node}' {capacity}" in " ".join(compile_plan(config.step_graph()).notes)  # type: ignore[union-attr]
