import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.cli.reporting import say


def stepweave(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


VERBS = ["check", "run", "trace", "profile", "simulate", "list", "schema", "doctor"]
GRAPH_VERBS = ["show", "render", "why", "why-not", "diff", "whatif"]
BENCH_VERBS = ["serve", "offline", "compare"]


@pytest.mark.parametrize(
    "verb",
    [
        *([], ["graph"], ["bench"], *([verb] for verb in VERBS)),
        *(["graph", verb] for verb in GRAPH_VERBS),
        *(["bench", verb] for verb in BENCH_VERBS),
    ],
)
def test_every_verb_explains_itself(verb: list[str]) -> None:
    result = stepweave(*verb, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    if verb not in ([], ["graph"], ["bench"]):
        assert f"stepweave {' '.join(verb)}" in result.stdout


def test_the_schema_is_json() -> None:
    assert "PipelineConfig" in json.loads(stepweave("schema").stdout)["$defs"]


@pytest.mark.parametrize("form", ["lanes", "dot", "mermaid", "json"])
def test_a_plan_can_be_drawn_in_every_form(form: str) -> None:
    result = stepweave("graph", "show", "abstract_decode", "--format", form)
    assert result.exit_code == 0, result.output
    assert "forward" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_drawing_can_be_coloured_on_request() -> None:
    assert "\x1b" in stepweave("graph", "show", "abstract_decode", "--color").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["graph", "show", "abstrac_decode"], 2, "did you mean 'abstract_decode'"),
        (["graph", "show", "abstract_decode", "--set", "ordr=keep"], 2, "did you mean 'order'"),
        (["graph", "show", "abstract_decode", "--set", "order"], 2, "--set dotted.key=value"),
        (["graph", "show", "abstract_decode", "--format", "pdf"], 2, "'lanes'"),
        (["run", "abstract_decode"], 2, "abstract graph, with no code to run"),
        (["run", "nowhere.yaml"], 2, "no such file"),
        (["run", "async"], 2, "none given: add --prompt"),
        (["run", "async", "--prompts", "missing.jsonl"], 2, "cannot be read"),
        (["run", "async", "--schema", "x.json"], 2, "needs a --prompt"),
        (["run", "async", "--prompt", "x", "--schema", "missing.json"], 2, "cannot be read"),
        (["run", "async", "--prompt", "x", "--max-tokens", "0"], 2, "max-tokens"),
        (["nonsense"], 2, "nonsense"),
        (["check"], 2, "CONFIG"),
    ],
)
def test_a_mistake_is_one_clear_message_and_no_traceback(
    arguments: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = stepweave(*arguments)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_refused_graph_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text("values: {x: }\nnodes:\n  - name: a\n    host: {reads: [x]}\n")
    result = stepweave("graph", "show", path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {path}:3:5: node 'a'")


def test_debug_shows_where_an_error_came_from() -> None:
    result = stepweave("--debug", "graph", "show", "nowhere")
    assert result.exception is not None
    assert "no such file" in str(result.exception)


def console(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from stepweave.cli.main import main; main()", *arguments]


def test_a_reader_that_goes_away_is_no_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as gone:
        done = subprocess.run(
            console("check", *["abstract_decode"] * 3),
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.stderr == ""
    assert done.returncode == 141


def test_a_poor_terminal_gets_its_drawing_too() -> None:
    done = subprocess.run(
        console("graph", "show", "abstract_decode"),
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert b"forward" in done.stdout


def test_what_somebody_else_says_does_not_drive_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("HTTP 500: \x1b[31mred\nand more")
    assert capsys.readouterr().err == "HTTP 500: \\x1b[31mred\nand more\n"
