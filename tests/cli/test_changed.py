"""A change of the file alone: `check` says what it changes in the plan of the extended file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stepweave.cli.main import app
from stepweave.cli.planned import planned


def checked(path: Path, text: str, *arguments: str) -> str:
    """What `check` says behind the waits, in one line."""
    path.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["check", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.partition("\nchanged in the plan of ")[2].split())


def test_a_drafter_that_is_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    said = checked(path, "extends: quickstart\nnodes: {draft: null}\n")
    before, after = planned("quickstart"), planned(str(path))
    assert "draft.device" not in after.graph.vertices
    assert said.startswith("quickstart without draft; 2 → 2 waits: ")
    assert "− d2h_copy.device for draft.device, + d2h_copy.device for sample.device" in said
    assert f"{before.requirements} → {after.requirements} requirements" in said
    assert said.endswith("500 → 400 µs a step")


def test_grammar_masks_that_are_added(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    text = "extends: async_speculation\nnodes: {bitmask: {after: forward, backend: llguidance}}\n"
    said = checked(path, text)
    assert said.startswith("async_speculation new: bitmask; 2 → 2 waits: ")
    assert said.endswith("85 → 109 requirements; 400 → 500 µs a step")
    names = [node.name for node in planned(str(path)).graph.nodes]
    assert names.index("bitmask") == names.index("forward") + 1


def test_a_node_that_is_moved_to_another_stream(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    said = checked(path, "extends: async_speculation\nnodes: {draft: {stream: draft}}\n")
    assert said == (
        "async_speculation draft runs on stream draft, not compute; 2 → 4 waits: + draft.device "
        "for sample.device, + prepare_inputs.device for draft.device; 85 requirements, as before; "
        "400 µs a step, as before"
    )


@pytest.mark.parametrize(
    ("extends", "rest", "said"),
    [
        ("base", "check: strict", "base nothing: the plan is the same"),
        ("base", "depth: 1", "slots: staging 2 → 1"),
        ("base", "slots: {staging: 3}", "slots: staging 2 → 3"),
        ("async_grammar", "nodes: {bitmask: {actor: grammar}}", "host thread grammar, not driver"),
        ("async_ngram", "nodes: {draft: {kind: eagle}}", "draft is of kind eagle, not ngram"),
        (
            "async_grammar",
            "nodes: {sample: {before: bitmask}}",
            "in another order: schedule, prepare_inputs, forward, sample, bitmask, d2h_copy, ",
        ),
    ],
)
def test_other_changes_are_said_too(extends: str, rest: str, said: str, tmp_path: Path) -> None:
    assert said in checked(tmp_path / "it.yaml", f"extends: {extends}\n{rest}\n")


def test_settings_count_as_changes_and_costs_are_those_of_both(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    assert checked(path, "extends: base\n", "--set", "nodes.sample.stream=draft").startswith(
        "base sample runs on stream draft, not compute; "
    )
    said = checked(path, "extends: async\nnodes: {draft: {kind: ngram, after: sample}}\n")
    with_costs = checked(path, path.read_text(), "--costs", "llama_8b")
    assert with_costs != said
    assert f" → {planned(str(path), costs='llama_8b').period_us:,.6g} µs a step" in with_costs


def test_a_file_that_extends_another_file_of_yours_is_compared_with_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: base\ndepth: 3\n")
    path = tmp_path / "it.yaml"
    assert checked(path, "extends: mine.yaml\nexecutor: serial\n").startswith(
        f"{tmp_path / 'mine.yaml'} nothing"
    )


def test_for_programs_it_is_an_object_and_files_that_extend_nothing_have_none(
    tmp_path: Path,
) -> None:
    def found(name: str) -> Any:
        result = CliRunner().invoke(app, ["check", name, "--json"])
        return json.loads(result.stdout)

    change = found("drafter_stream")["changed"]
    assert change["extends"] == "async_speculation"
    assert change["words"].startswith("draft runs on stream draft")
    assert len(change["waits"]["added"]) == 2
    assert "changed" not in found("base")
    assert "changed" not in found("abstract_decode")
    assert "changed in the plan" not in CliRunner().invoke(app, ["check", "base"]).stdout


def test_an_extended_file_without_a_plan_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("extends: base\nnodes: {sample: {reads: {x: y}}}\n")
    path = tmp_path / "it.yaml"
    path.write_text(
        "extends: wrong.yaml\nnodes: {sample: null, again: {kind: sample, after: forward}}\n"
    )
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 0, result.output
    assert "changed in the plan" not in result.stdout
