"""Abstract graphs over others: what is added by name, and what is misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepweave.configs.abstract import AbstractGraph
from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config


def loaded(name: str) -> AbstractGraph:
    found = load_config(name)
    assert isinstance(found, AbstractGraph)
    return found


def over(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(f"extends: abstract_decode\n{text}\n")
    return path


@pytest.mark.parametrize("states", ["[extra]", "[{name: extra}]", "[extra, {name: kv}]"])
def test_states_are_added_to_those_there_are(states: str, tmp_path: Path) -> None:
    before = {each.name for each in loaded("abstract_decode").states}
    after = loaded(str(over(tmp_path, f"states: {states}")))
    assert {each.name for each in after.states} == {*before, "extra"}


@pytest.mark.parametrize(
    ("text", "said", "column"),
    [
        ("nodes:\n  - {name: comit, offset: 2}", "no node 'comit' to change (did you mean", 12),
        ("nodes:\n  - {name: forwrd, device: {cost_us: 9}}", "(did you mean 'forward'?)", 12),
        (
            "values:\n  bathc: {slots: 1}",
            "no op reads or writes 'bathc' (did you mean 'batch'?)",
            3,
        ),
    ],
)
def test_what_is_misspelt_is_nothing_new(text: str, said: str, column: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(str(over(tmp_path, text)))
    [problem] = caught.value.problems
    assert said in problem.message
    assert (problem.mark.line, problem.mark.column) == (3, column)


def test_a_new_node_may_be_called_nearly_as_another(tmp_path: Path) -> None:
    text = "nodes:\n  - {name: commits, host: {reads: [batch], cost_us: 1}}"
    assert "commits" in [each.name for each in loaded(str(over(tmp_path, text))).nodes]
