"""What people see of a run."""

import pytest

from stepweave import LLM
from stepweave.cli.results import print_text
from stepweave.requests.request import RequestOutput

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
    "notes": ["a segment: 1 of 9 steps not replayed"],
    "equal_to_synchronous": None,
}


def test_every_completion_is_shown_and_every_warning(capsys: pytest.CaptureFixture[str]) -> None:
    choices = tuple(
        RequestOutput(f"tale/{n}", "p", text, (n,), "stop") for n, text in enumerate(("one", "two"))
    )
    several = RequestOutput("tale", "p", "one", (0,), "stop", choices=choices)
    warned = RequestOutput("w", "q", "three", (7,), "stop", warnings=("uniqueItems is ignored",))
    print_text([several, warned], SUMMARY)
    shown = capsys.readouterr().out
    said = ("warning: uniqueItems is ignored", "note: a segment: 1 of 9 steps not replayed")
    for text in ("one", "two", "three", "tale/0", "tale/1", *said):
        assert text in shown
    assert "SYNTHETIC" not in shown


def test_synthetic_acceptance_is_labelled(capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(
        pipeline="async_speculation", overrides={"speculation.synthetic_acceptance": "[0.5, 0.25]"}
    )
    outputs = llm.generate({"prompt": "Write a short story about a fox.", "max_tokens": 12})
    assert llm.summary()["synthetic_acceptance"] == [0.5, 0.25]
    print_text(outputs, {**llm.summary(), "equal_to_synchronous": None})
    assert "SYNTHETIC ACCEPTANCE" in capsys.readouterr().out
