"""`run --compare` takes turns, and judges all that came out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest

from stepweave.cli import compare
from stepweave.cli.compare import Comparison, compared, quartiles
from stepweave.configs.schema import PipelineConfig
from stepweave.requests.request import RequestOutput
from stepweave.serving import llm as serving


class Timed:
    """An `LLM` on a clock of our own: each of its runs takes what it is told."""

    clock = 0.0
    turns: list[str]

    def __init__(self, name: str, seconds: Iterator[float], text: str = "same") -> None:
        self.name, self.seconds, self.text = name, seconds, text

    def generate(self, lines: object, progress: bool) -> list[RequestOutput]:
        Timed.turns.append(self.name)
        Timed.clock += next(self.seconds)
        return [RequestOutput("0", "p", self.text, (1,), "stop")]


def ran(
    monkeypatch: pytest.MonkeyPatch, ours: list[float], theirs: list[float], text: str = "same"
) -> Comparison:
    Timed.clock, Timed.turns = 0.0, []
    plain = Timed("synchronous", iter(theirs), text)
    monkeypatch.setattr(serving, "LLM", lambda pipeline: plain)
    found: Any = compared(
        cast(Any, Timed("pipeline", iter(ours))),
        PipelineConfig(),
        [],
        [RequestOutput("0", "p", "same", (1,), "stop")],
        ours[0],
        clock=lambda: Timed.clock,
    )
    assert isinstance(found, Comparison)
    return found


def test_rounds_alternate_and_the_first_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(monkeypatch, [0.5] * 9, [4.0, *(0.125 * n for n in range(1, 9))])
    assert Timed.turns[0] == "synchronous", "which warms up"
    rounds = [tuple(Timed.turns[at : at + 2]) for at in range(1, len(Timed.turns), 2)]
    assert set(rounds) == {("pipeline", "synchronous"), ("synchronous", "pipeline")}
    assert all(one != other for one, other in pairwise(rounds))
    assert len(found.ratios) == 8
    assert 8.0 not in found.ratios


def test_a_long_job_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(monkeypatch, [8.0], [12.0])
    assert Timed.turns == ["synchronous"]
    assert found.to_json() == {
        "equal_to_synchronous": True,
        "speed_ratio": 1.5,
        "speed_ratio_quartiles": [1.5, 1.5],
        "rounds": 1,
    }


def test_one_unequal_round_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ran(monkeypatch, [1.0] * 9, [1.0] * 9, text="other").equal


def test_quartiles_are_those_of_the_ratios() -> None:
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    assert quartiles([2.0]) == (2.0, 2.0, 2.0)
    assert compare.MOST_ROUNDS > 3, "else quartiles say little"
