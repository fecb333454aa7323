"""The exit status is the same on every verb: 1 for what is examined, 2 for what is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from tests.shares import one_in

STEPWEAVE = [sys.executable, "-c", "from stepweave.cli.main import main; main()"]
VERBS = {
    "check": ["check", "{}"],
    "check, json": ["check", "{}", "--json"],
    "mutate": ["check", "{}", "--mutate"],
    "show": ["graph", "show", "{}"],
    "render": ["graph", "render", "{}", "-o", "plan.svg"],
    "why": ["graph", "why", "{}", "sample", "forward"],
    "why-not": ["graph", "why-not", "{}", "sample", "forward"],
    "diff": ["graph", "diff", "async", "{}"],
    "whatif": ["graph", "whatif", "{}"],
    "simulate": ["simulate", "{}"],
    "run": ["run", "{}", "--prompt", "x"],
    "trace": ["trace", "{}", "--prompt", "x"],
    "profile": ["profile", "{}", "--prompt", "x"],
}
"""Every verb that takes a config."""

FILES = {
    "key.yaml": "extends: async\nmodle: {}\n",
    "value.yaml": "extends: async\ndepth: deep\n",
    "syntax.yaml": "extends: async\nnodes: [\n",
    "name.yaml": "extends: async\nslots: {stagin: 2}\n",
    "graph.yaml": "extends: async\nnodes: [{name: forward, reads: {inputs: tokens}}]\n",
    "empty.yaml": "",
}


def said(result: Result) -> str:
    """What is told on stderr; of `check --json`, on stdout."""
    return result.stderr or result.stdout


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(("verb", "name"), one_in(3, VERBS, FILES))
def test_a_file_that_says_something_wrong_is_status_1_on_every_verb(verb: str, name: str) -> None:
    result = CliRunner().invoke(app, [each.format(name) for each in VERBS[verb]])
    assert result.exit_code == 1, result.output
    assert name in said(result)
    assert verb == "check, json" or result.stdout == "", "what is wrong is told on stderr"


@pytest.mark.sampled(26)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("nowhere", [], "no such file or shipped config"),
        ("async", ["--set", "modle.name=x"], "--set modle.name=x"),
        ("async", ["--set", "slots.stagin=2"], "(did you mean 'staging'?)"),
        ("async", ["--set", "depth"], "--set depth"),
        (".", [], "is a directory; name a file in it"),
        ("x" * 5000, [], "File name too long"),
    ],
)
def test_a_command_that_is_wrong_is_status_2_on_every_verb(
    verb: str, name: str, more: list[str], told: str
) -> None:
    result = CliRunner().invoke(app, [*(each.format(name) for each in VERBS[verb]), *more])
    assert result.exit_code == 2, result.output
    assert told in said(result)
    assert len(result.stderr) < 3000


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["run", "async", "--prompts", "key.yaml"], 1, "key.yaml:1:1: is not JSON"),
        (["run", "async", "--prompts", "empty.yaml"], 1, "holds no prompts"),
        (["run", "async", "--prompts", "nowhere"], 2, "cannot be read"),
        (["run", "async", "--prompt", "x", "--schema", "key.yaml"], 1, "is not JSON"),
        (["check", "async", "--costs", "key.yaml"], 1, "key.yaml:1:1"),
        (["check", "async", "--costs", "nowhere"], 2, "no such costs file"),
    ],
)
def test_other_files_are_judged_alike(arguments: list[str], status: int, told: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert told in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("model.name=./nowhere", "there is no directory './nowhere'"),
        ("model.device=cuda:1", "device 'cuda:1' is a GPU"),
        ("executor=cuda", "device 'cuda' is a GPU"),
    ],
)
def test_models_and_devices_that_do_not_exist_are_status_2(setting: str, told: str) -> None:
    result = CliRunner().invoke(app, ["run", "async", "--prompt", "x", "--set", setting])
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


UNWRITABLE = {
    "full": "> /dev/full",
    "closed": ">&-",
    "read-only": "1< /dev/null",
}
PRINTING = ("schema", "--help", "graph render abstract_decode -o - --format svg")
ENDING = {
    "run nowhere": 2,
    "check key.yaml": 1,
    "graph render abstract_decode -o plan.svg": 0,
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("how", "command"), one_in(3, UNWRITABLE, PRINTING))
def test_output_that_cannot_be_written_is_one_line_and_status_2(how: str, command: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {UNWRITABLE[how]}', "sh", *STEPWEAVE, *command.split()]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: standard output cannot be written: "), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("how", "command"), one_in(2, ["2> /dev/full", "2>&-"], ENDING))
def test_without_a_place_for_messages_the_status_still_tells(how: str, command: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {how}', "sh", *STEPWEAVE, *command.split()]
    done = subprocess.run(shell, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (ENDING[command], "")
    if "plan.svg" in command:
        assert os.path.getsize("plan.svg") > 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ("schema", "x" * 9000),
        ("check", "quickstart", "--" + "x" * 9000),
        ("graph", "x" * 9000),
        ("simulate", "quickstart", "--steps", "x" * 9000),
        ("x" * 9000,),
    ],
)
def test_a_wrong_argument_is_quoted_in_a_message_of_bounded_length(
    arguments: tuple[str, ...],
) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert len(result.stderr) < 3000
