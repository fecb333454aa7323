"""`run --compare` takes turns, and judges all that came out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest

from stepweave.cli import compare
from stepweave.cli.compare import Comparison, compared, first_difference, quartiles
from stepweave.configs.load import load_config
from stepweave.configs.prompts import PromptLine
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
        "first_difference": None,
        "speed_ratio": 1.5,
        "speed_ratio_quartiles": [1.5, 1.5],
        "rounds": 1,
    }


def test_one_unequal_round_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(monkeypatch, [1.0] * 9, [1.0] * 9, text="other")
    assert not found.equal
    assert found.difference == "text of request '0' is 'same', there 'other'"


def output(name: str, *tokens: int, **more: Any) -> RequestOutput:
    return RequestOutput(name, "p", "", tokens, "stop", **more)


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (output("b", 5, 6, 7), None),
        (output("b", 5, 9, 9), "token_ids[1] of request 'b' is 6, there 9"),
        (output("b", 5, 6), "token_ids[2] of request 'b' is 7, there none"),
        (output("b", 5, 6, 7, drafted=2), "drafted of request 'b' is 0, there 2"),
    ],
)
def test_the_first_difference_names_request_and_token(
    theirs: RequestOutput, told: str | None
) -> None:
    ours = [output("a", 1), output("b", 5, 6, 7), output("c", 1)]
    assert first_difference(ours, [output("a", 1), theirs, output("c", 2)]) == (
        told or "token_ids[0] of request 'c' is 1, there 2"
    )


def test_all_completions_of_a_prompt_are_compared() -> None:
    def both(second: int) -> RequestOutput:
        return output("t", 1, choices=(output("t/0", 1), output("t/1", second)))

    told = "token_ids[0] of request 't/1' is 2, there 3"
    assert first_difference([both(2)], [both(3)]) == told


def test_without_drafts_their_counts_may_differ_and_tokens_may_not() -> None:
    ours = [output("a", 1, drafted=3, accepted=1)]
    assert first_difference(ours, [output("a", 1)], drafts=False) is None
    told = "token_ids[0] of request 'a' is 1, there without drafts 2"
    assert first_difference(ours, [output("a", 2)], drafts=False) == told


def test_where_every_request_failed_no_speeds_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Timed.clock, Timed.turns = 0.0, []
    monkeypatch.setattr(serving, "LLM", lambda pipeline: Timed("synchronous", iter([1.0])))
    failed = RequestOutput("0", "p", "", (), "error", error="no luck")
    compared(cast(Any, Timed("pipeline", iter([]))), PipelineConfig(), [], [failed], 1.0)
    assert Timed.turns == ["synchronous"]


@pytest.mark.parametrize(
    ("overrides", "runs"),
    [
        ({}, 1),
        ({"policies.acceptance": "rejection"}, 0),
        ({"model.invariant": False}, 0),
    ],
)
def test_a_node_that_takes_drafts_for_text_is_found_by_a_run_without_drafts(
    monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], runs: int
) -> None:
    line = PromptLine(prompt="p")
    drafted = output("0", 1, 7, drafted=2)

    class Wrong:
        """Tokens depend on whether there are drafts."""

        without = 0

        def generate(self, lines: list[PromptLine], progress: bool) -> list[RequestOutput]:
            if lines[0].parameters.get("draft_tokens") == 0:
                self.without += 1
                return [output("0", 1, 2)]
            return [drafted]

    wrong = Wrong()
    monkeypatch.setattr(serving, "LLM", lambda pipeline: wrong)
    config = load_config("quickstart", overrides)
    assert isinstance(config, PipelineConfig)
    found = compared(cast(Any, wrong), config, [line], [drafted], 100.0)
    assert wrong.without == runs
    told = "token_ids[1] of request '0' is 7, there without drafts 2"
    assert found.difference == (told if runs else None)


def test_quartiles_are_those_of_the_ratios() -> None:
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    assert quartiles([2.0]) == (2.0, 2.0, 2.0)
    assert compare.MOST_ROUNDS > 3, "else quartiles say little"
