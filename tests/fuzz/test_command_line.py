"""Hostile options, files and settings end in 0, 1 or 2 with a message that can be understood."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepweave.configs.costs import CostsFile
from stepweave.configs.prompts import PromptLine
from stepweave.configs.schema import PipelineConfig
from tests.fuzz import command_line
from tests.fuzz.command_line import SPOTS, Spot, any_line, case_of, changed, verbs

ROOT = Path(__file__).parents[2]


def fuzzed(*arguments: str) -> None:
    """In a process of its own, whose memory is limited."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.command_line", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (found[:5], done.stderr[-2000:])
    assert found[-1]["failed"] == 0
    assert found[-1]["ended"].keys() == {"0", "1", "2"}, "or the cases are all of one kind"


def test_a_sample_of_hostile_command_lines_and_files_is_answered() -> None:
    fuzzed("--seed", "0", "--cases", "45", "--light")


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("seed", range(1, 5))
def test_hostile_command_lines_and_files_are_answered_at_length(seed: int) -> None:
    fuzzed("--seed", str(seed), "--cases", "5000")


def test_every_verb_and_every_option_comes_up() -> None:
    typed = {word for number in range(4000) for word in any_line(Random(number)).arguments}
    for path, command in verbs().items():
        assert set(path) <= typed
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert set(parameter.opts) <= typed, (path, parameter.name)


def test_every_key_of_every_file_comes_up() -> None:
    tops = {kind: {spot.path[0] for spot in spots} for kind, spots in SPOTS.items()}
    assert tops["pipeline"] >= PipelineConfig.model_fields.keys()
    assert tops["prompts"] >= PromptLine.model_fields.keys()
    assert tops["costs"] >= CostsFile.model_fields.keys()
    assert Spot(("nodes", 0, "host")) in SPOTS["abstract"]
    assert Spot(("scheduler", "max_rows")) in SPOTS["pipeline"]
    assert Spot(("prompts", 0, "structured_outputs", "regex")) in SPOTS["pipeline"]
    assert changed({"a": [{"b": 1}]}, Spot(("a", 0, "c")), 2) == {"a": [{"b": 1, "c": 2}]}
    assert case_of(0, 7) == case_of(0, 7)


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (0, "", None),
        (1, "error: it.yaml:1:1: unknown key", None),
        (2, "error: --set x: unknown key", None),
        (120, "error: x", "exit status 120"),
        (1, "", "without a word"),
        (2, "Traceback (most recent call last)", "Traceback"),
        (1, "error: 'NoneType' object is not iterable", "NoneType"),
        (2, "error: cannot be read: [Errno 36] File name too long", "Errno"),
        (2, "error: " + "x" * 70_000, "characters of message"),
        (2, "something is not right", "no error"),
    ],
)
def test_the_judge_sees_what_is_wrong(status: int, said: str, verdict: str | None) -> None:
    result = cast(Any, SimpleNamespace(exit_code=status, output=said, stderr=said))
    found = command_line._misjudged(result)
    assert (found is None) == (verdict is None)
    assert verdict is None or (found is not None and verdict in found)
