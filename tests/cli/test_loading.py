"""While libraries and models load, a terminal says so, and nothing else does."""

from __future__ import annotations

import io
import sys

import pytest

from stepweave.cli.loading import loaded
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.errors import StepweaveError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **settings: str) -> str:
    config = load_config("quickstart", settings)
    assert isinstance(config, PipelineConfig)
    monkeypatch.setattr(sys, "stderr", stream)
    loaded(config).close()
    return stream.getvalue()


def test_a_terminal_is_told_what_loads_and_the_line_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = shown(Terminal(), monkeypatch)
    lines = [part.rstrip() for part in said.split("\r") if part.strip()]
    assert lines == ["importing torch and transformers …", "loading embedded and embedded-draft …"]
    assert said.endswith("\r")
    assert "\n" not in said


def test_a_file_or_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch) == ""


def test_the_line_is_taken_back_before_an_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    with pytest.raises(StepweaveError):
        shown(terminal, monkeypatch, **{"model.name": "./nowhere", "nodes.draft": "null"})
    assert terminal.getvalue().endswith("\r")
