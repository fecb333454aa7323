"""Running `stepweave graph …` and comparing what it prints with a golden text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app

GOLDEN = Path(__file__).parent / "golden"


def graph(*arguments: str | Path) -> Result:
    """The verb of `stepweave graph` in 80 columns, as where no terminal is."""
    environment = {"COLUMNS": "80"}
    return CliRunner().invoke(app, ["graph", *map(str, arguments)], env=environment)


def text(*arguments: str | Path) -> str:
    done = graph(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def data(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(*arguments, "--json"))
    return found


def words(*arguments: str | Path) -> str:
    """What is printed on one line, so that a test need not know where lines break."""
    return " ".join(text(*arguments).split())


def matches_golden(name: str, printed: str) -> None:
    """UPDATE_GOLDEN=1 rewrites the golden. No line is longer than a terminal is wide."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(printed, encoding="utf-8")
    assert printed == path.read_text(encoding="utf-8")
    assert max(map(len, printed.splitlines())) <= 80


def examples_of(verb: str) -> list[list[str]]:
    """The command lines that the verb's help shows, without `stepweave graph`."""
    done = graph(verb, "--help")
    lines = [line.strip().split() for line in done.output.splitlines()]
    found = [line[2:] for line in lines if line[:2] == ["stepweave", "graph"]]
    assert found, f"{verb} --help shows no example"
    return found


def assert_examples_work(
    verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...] = (0,)
) -> None:
    monkeypatch.chdir(folder)
    for example in examples_of(verb):
        done = graph(*example)
        assert done.exit_code in codes, f"{example}: {done.output}"
        assert done.output
