"""`stepweave trace`: what it writes, what it says, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from tests.views.test_perfetto import check


def stepweave(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_real_run_is_written_for_perfetto_and_as_a_page(tmp_path: Path) -> None:
    result = stepweave(
        "trace", "quickstart", "--html", "t.html", "--json", "--warm-up", "0",
        "--prompt", "Write a short story about a fox.", "--max-tokens", "60",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["executor"] == "threads"
    assert not said["simulated"]
    assert said["period_us"]["measured"] > 0
    assert 0 < said["overlap"]["of_device"] < 1
    by_mode = said["modes"]["by_mode"]
    assert {each["mode"].split(",")[0] for each in by_mode} == {"decode"}  # in the steady steps
    assert sum(each["steps"] for each in by_mode) == said["steady"][1] - said["steady"][0]
    assert said["counts"][0]["mode"].startswith("prefill")
    request = said["requests"][0]
    moments = [
        request[f"{name}_us"]
        for name in ("asked", "submitted", "scheduled", "first_token", "ended")
    ]
    assert moments == sorted(moments)
    assert (request["tokens"], request["finish_reason"]) == (60, "length")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    check(trace)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {"measured", "planned", "requests"}
    measured = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert len(measured) % said["steps"] == 0
    assert max(e["args"]["step"] for e in measured) == said["steps"] - 1
    first = next(e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "prefill")
    begun = [e for e in measured if e["args"]["step"] == 0]
    ends = max(e["ts"] + e["dur"] for e in begun)
    assert min(e["ts"] for e in begun) <= first["ts"] <= ends
    assert "</html>" in (tmp_path / "t.html").read_text(encoding="utf-8")


def test_the_serial_executor_is_held_against_the_serial_loop() -> None:
    result = stepweave(
        "trace", "synchronous", "--set", "executor=serial", "--warm-up", "0",
        "--prompt", "Hello", "--max-tokens", "16",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "on serial" in result.stdout
    assert "0% of host work is hidden" in result.stdout
    assert "the one thread ran" in result.stdout


def test_an_abstract_graph_is_simulated_and_labelled_so(tmp_path: Path) -> None:
    result = stepweave("trace", "abstract_decode", "-o", "a.json", "--steps", "20")
    assert result.exit_code == 0, result.output
    assert "20 steps simulated, not run" in result.stdout
    assert "period     simulated 4,870 µs, predicted 4,870 µs (0.0%)" in result.stdout
    trace = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    check(trace)
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == ["simulated"]


def test_steps_are_not_asked_of_what_is_run() -> None:
    result = stepweave("trace", "async", "--prompt", "Hi", "--steps", "9")
    assert result.exit_code == 2
    assert "--steps: async is run: there are as many steps as its prompts take" in result.stderr


def test_a_run_that_is_too_short_is_written_and_refused(tmp_path: Path) -> None:
    result = stepweave(
        "trace", "async", "--prompt", "Hi", "--max-tokens", "1", "--warm-up", "0", "-o", "x.json"
    )
    assert result.exit_code == 1
    assert "there is no steady state" in result.stderr
    assert "Ask for more tokens" in result.stderr
    assert result.stdout == ""
    check(json.loads((tmp_path / "x.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["async"], 2, "none given: add --prompt"),
        (["abstract_decode", "--prompt", "x"], 2, "takes no prompts"),
        (["abstract_decode", "--steps", "2"], 1, "no steady state: of 2 steps"),
        (["abstract_decode", "-o", "nowhere/t.json"], 2, "there is no directory 'nowhere'"),
        (["abstract_decode", "--html", "."], 2, "is a directory"),
        (["abstrac_decode"], 2, "did you mean 'abstract_decode'"),
    ],
)
def test_a_mistake_is_one_clear_message(
    arguments: list[str], code: int, said: str, tmp_path: Path
) -> None:
    result = stepweave("trace", *arguments)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples() -> None:
    assert (
        "stepweave trace quickstart -o trace.json --html timeline.html"
        in stepweave("trace", "--help").stdout
    )
