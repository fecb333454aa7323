"""`graph why` and `graph why-not`: the texts, the JSON, and names that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepweave.cli.planned import planned
from stepweave.configs.load import shipped
from tests.cli.questions import assert_examples_work, data, graph, matches_golden, text, words
from tests.graph.shipped_plans import GRAPHS


@pytest.mark.parametrize(
    ("golden", "question"),
    [
        ("why_wait.txt", ("why", "quickstart", "d2h_copy", "commit")),
        ("why_backwards.txt", ("why", "drafter_stream", "prepare_inputs.device", "draft.device")),
        ("why_launches.txt", ("why", "grammar_worker", "bitmask", "sample")),
        ("why_no_wait.txt", ("why", "quickstart", "sample", "d2h_copy")),
        ("why_not.txt", ("why-not", "quickstart", "forward", "commit")),
        (
            "why_not_wait.txt",
            ("why-not", "drafter_stream", "draft.device", "prepare_inputs.device"),
        ),
        (
            "why_not_state.txt",
            ("why-not", "grammar_worker", "bitmask.host", "commit.host.advance"),
        ),
    ],
)
def test_the_answer_reads_as_it_did(golden: str, question: tuple[str, ...]) -> None:
    matches_golden(golden, text(*question))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "name", [name for name in shipped() if name == "abstract_decode" or name not in GRAPHS]
)
def test_every_wait_that_is_shipped_has_an_answer_that_fits_a_terminal(name: str) -> None:
    plan = planned(name)
    copied = any(node.name == "d2h_copy" for node in plan.graph.nodes)
    ends = ("d2h_copy", "commit") if copied else (plan.waits[0].source, plan.waits[0].target)
    found = data("why", name, *ends)
    assert found["waits"], name
    for wait in found["waits"]:
        printed = text("why", name, wait["from"], wait["to"])
        assert max(map(len, printed.splitlines())) <= 80
        step = f"i{wait['distance']:+d}" if wait["distance"] else "i"
        said = f"{wait['to']} of step {step} waits for {wait['from']}"
        assert said in " ".join(printed.split())
        for reason in wait["protects"]:
            assert f"{reason['before']} → {reason['after']}" in printed


def test_only_the_other_direction_is_said_to_be_so() -> None:
    printed = words("why", "quickstart", "commit", "d2h_copy")
    assert printed.startswith(
        "d2h_copy waits for nothing of commit. The wait is the other way round: Wait 2 of 2"
    )
    found = data("why", "quickstart", "commit", "d2h_copy")
    assert found["waits"] == []
    assert [wait["from"] for wait in found["back_waits"]] == ["d2h_copy.device"]


def test_both_directions_are_shown() -> None:
    found = data("why", "drafter_stream", "sample", "draft")
    assert [(w["from"], w["to"]) for w in found["waits"]] == [("sample.device", "draft.device")]
    printed = words("why", "abstract_decode", "prepare_inputs", "prepare_inputs")
    assert "There is no wait between" in printed


def test_without_a_wait_or_a_requirement_the_answer_says_what_may_overlap() -> None:
    printed = words("why-not", "quickstart", "forward.device", "bitmask.host")
    assert "There is no wait between forward.device and bitmask.host." in printed
    assert "There is no requirement between them either" in printed
    assert "may overlap with bitmask.host of step i" in printed


@pytest.mark.parametrize(
    ("distance", "order", "said"),
    [
        (0, "before", "is done before commit.host.advance of step i starts"),
        (-1, "overlap", "commit.host.advance of step i-1 may overlap: nothing orders them"),
        (-2, "after", "starts after commit.host.advance of step i-2 is done"),
    ],
)
def test_a_distance_asks_about_two_steps(distance: int, order: str, said: str) -> None:
    question = ("why-not", "quickstart", "forward.device", "commit.host.advance")
    assert said in words(*question, "--distance", str(distance))
    found = data(*question, "--distance", str(distance))
    assert [each["order"] for each in found["asked"]] == [order]


def test_settings_are_those_of_every_verb() -> None:
    found = data("why", "quickstart", "d2h_copy", "commit", "--set", "depth=1")
    assert found["waits"][0]["cost"]["critical"]
    assert found["waits"][0]["cost"]["period_us"] == 640


@pytest.mark.parametrize("verb", ["why", "why-not"])
@pytest.mark.parametrize(
    ("first", "then", "near"),
    [("comit", "sample", "commit"), ("sample", "d2h_copy.devcie", "d2h_copy.device")],
)
def test_a_wrong_name_gets_the_nearest_right_one(
    verb: str, first: str, then: str, near: str
) -> None:
    done = graph(verb, "quickstart", first, then)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert f"did you mean {near!r}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("verb", ["why", "why-not"])
def test_the_examples_of_the_help_work(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_examples_work(verb, tmp_path, monkeypatch)
