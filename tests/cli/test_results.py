"""What people see of a run."""

import json
import math
import sys

import pytest

from stepweave import LLM
from stepweave.cli.results import print_text, write_json
from stepweave.requests.request import RequestOutput, TokenLogprob

SUMMARY = {
    "tokens": 3,
    "steps": 2,
    "seconds": 1.0,
    "tokens_per_second": 3.0,
    "executor": "threads",
    "depth": 2,
    "waits": 2,
    "drafted": 0,
    "accepted": 0,
    "acceptance_length": None,
    "notes": ["a segment: 1 of 9 steps not replayed"],
    "equal_to_synchronous": None,
}


def test_every_completion_is_shown_and_every_warning(capsys: pytest.CaptureFixture[str]) -> None:
    choices = tuple(
        RequestOutput(f"tale/{n}", "p", text, (n,), "stop") for n, text in enumerate(("one", "two"))
    )
    several = RequestOutput("tale", "p", "one", (0,), "stop", choices=choices)
    warned = RequestOutput("w", "q", "three", (7,), "stop", warnings=("uniqueItems is ignored",))
    print_text([several, warned], SUMMARY, sys.stdout)
    shown = capsys.readouterr().out
    said = ("warning: uniqueItems is ignored", "note: a segment: 1 of 9 steps not replayed")
    for text in ("one", "two", "three", "tale/0", "tale/1", *said):
        assert text in shown
    assert "SYNTHETIC" not in shown


def test_a_run_with_drafts_says_what_a_window_comes_to(capsys: pytest.CaptureFixture[str]) -> None:
    print_text([], SUMMARY, sys.stdout)
    assert "window" not in capsys.readouterr().out
    of_trees = {**SUMMARY, "drafted": 200, "accepted": 30, "acceptance_length": 2.5}
    print_text([], of_trees, sys.stdout)
    said = " ".join(capsys.readouterr().out.split())
    assert "2.50 tokens per window of drafts, 15% of drafts accepted" in said


def test_synthetic_acceptance_is_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(
        pipeline="async_speculation",
        overrides={"policies.acceptance": "{kind: synthetic, rates: [0.5, 0.25]}"},
    )
    outputs = llm.generate({"prompt": "Write a short story about a fox.", "max_tokens": 12})
    assert llm.summary()["synthetic_acceptance"] == [0.5, 0.25]
    print_text(outputs, {**llm.summary(), "equal_to_synchronous": None}, sys.stdout)
    assert "SYNTHETIC ACCEPTANCE" in capsys.readouterr().out


def test_a_panel_is_titled_by_request_and_prompt_and_failures_come_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    well = [RequestOutput(str(n), f"prompt {n}", "text", (1,), "stop") for n in range(3)]
    failed = RequestOutput("3", "the bad one", "", (), "error", error="no grammar")
    print_text([*well, failed], SUMMARY, sys.stdout)
    shown = capsys.readouterr().out
    titles = ("3: the bad one", "0: prompt 0", "2: prompt 2")
    places = [shown.index(f"─ {title} ") for title in titles]
    assert places == sorted(places)
    assert shown.index("failed: no grammar") < places[1]


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        (1, "1.50 times its speed (one round)"),
        (8, "1.50 times its speed (quartiles 1.20 and 1.75 of 8 rounds)"),
    ],
)
def test_a_comparison_says_its_spread(
    rounds: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        "speed_ratio": 1.5,
        "speed_ratio_quartiles": [1.2, 1.75],
        "rounds": rounds,
        "first_difference": None,
    }
    print_text([], {**SUMMARY, **found, "equal_to_synchronous": True}, sys.stdout)
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_comparison_says_where_tokens_first_differ(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"speed_ratio": 1.5, "speed_ratio_quartiles": [1.5, 1.5], "rounds": 1}
    unequal = {"equal_to_synchronous": False, "first_difference": "token_ids[3] is 7, there 8"}
    print_text([], {**SUMMARY, **found, **unequal}, sys.stdout)
    said = " ".join(capsys.readouterr().out.split())
    assert "NOT EQUAL to the synchronous loop, 1.50 times its speed" in said
    assert "first difference: token_ids[3] is 7, there 8" in said


def test_minus_infinity_is_a_number_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    told = TokenLogprob(5, -0.25, 1, ((6, -0.5), (7, -math.inf)))
    write_json(RequestOutput("0", "-Infinity", "", (5,), "stop", logprobs=(told,)), sys.stdout)
    line = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert line["prompt"] == "-Infinity"
    assert line["logprobs"][0]["top"] == [[6, -0.5], [7, -9999.0]]
