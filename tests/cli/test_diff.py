"""`graph diff`: the text, the JSON, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.questions import assert_examples_work, data, graph, matches_golden, text, words


@pytest.mark.parametrize(
    ("golden", "question"),
    [
        ("diff_depth.txt", ("quickstart", "quickstart", "--set-y", "depth=1")),
        ("diff_stream.txt", ("async", "drafter_stream")),
        (
            "diff_slots.txt",
            (
                *("abstract_decode", "abstract_decode"),
                *("--set-y", "values.inputs_pinned.slots=1"),
            ),
        ),
    ],
)
def test_the_difference_reads_as_it_did(golden: str, question: tuple[str, ...]) -> None:
    matches_golden(golden, text("diff", *question))


def test_equal_plans_are_said_to_be_identical() -> None:
    printed = words("diff", "async", "configs/async.yaml", "--exit-code")
    assert printed.endswith("identical: the same plan, and the same costs")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--set-y", "depth=1"), 0),
        (("--set-y", "depth=1", "--exit-code"), 1),
        (("--set", "depth=1", "--exit-code"), 0),
        (("--set-x", "depth=1", "--set-y", "depth=1", "--exit-code"), 0),
        (("--set-y", "costs.forward.device=101", "--exit-code"), 1),
    ],
)
def test_the_exit_code_tells_a_difference_only_when_asked(
    options: tuple[str, ...], code: int
) -> None:
    assert graph("diff", "async", "async", *options).exit_code == code


def test_json_has_both_sides_and_every_kind_of_change() -> None:
    found = data("diff", "quickstart", "quickstart", "--set-y", "depth=1")
    assert (found["before"], found["after"]) == ("quickstart", "quickstart depth=1")
    assert found["period_us"] == [500, 640]
    assert found["slots"] == {"staging": [2, 1]}
    assert not found["identical"]
    assert set(found) == {
        *("before", "after", "identical", "digests", "period_us", "step_us", "critical_cycle"),
        *("ops", "values", "waits", "slots", "actors", "costs", "requirements"),
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("async", "asink"), "did you mean 'async'"),
        (("async", "async", "--set-y", "depht=1"), "did you mean 'depth'"),
        (("async", "async", "--set-y", "depth"), "--set-y depth: write it as --set-y KEY=VALUE"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: tuple[str, ...], said: str) -> None:
    done = graph("diff", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_examples_of_the_help_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_examples_work("diff", tmp_path, monkeypatch, codes=(0, 1))


def test_a_page_is_written_beside_the_text(tmp_path: Path) -> None:
    page = tmp_path / "difference.html"
    printed = text("diff", "async", "drafter_stream", "--html", str(page))
    assert "waits" in printed
    assert "<ins>draft.device</ins>" in page.read_text()


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    found = graph("diff", "async", "async", "--html", str(tmp_path / "none" / "page.html"))
    assert found.exit_code == 2
    assert "there is no directory" in found.output


def test_of_graphs_with_rates_it_says_how_many_steps_a_cycle_has(tmp_path: Path) -> None:
    graph = """\
nodes:
  - {name: a, host: {writes: [x], cost_us: 50}}
  - {name: b, every: EVERY, host: {reads: [x], cost_us: 90}}
values: {x: {}}
"""
    files = [tmp_path / f"{every}.yaml" for every in (1, 2, 3)]
    for every, file in enumerate(files, start=1):
        file.write_text(graph.replace("EVERY", f"{every}"))

    def line(before: Path, after: Path) -> list[str]:
        said = text("diff", str(before), str(after)).splitlines()
        return [each for each in said if each.startswith("cycle")]

    told = "steps: nodes and values of step k of a cycle are called name#k"
    assert line(files[1], files[2]) == [f"cycle      2 → 3 {told}"]
    assert line(files[0], files[1]) == [f"cycle      1 → 2 {told}"]
    changed = tmp_path / "changed.yaml"
    changed.write_text(files[1].read_text().replace("90", "91"))
    assert line(files[1], changed) == [f"cycle      2 {told}"]
    assert line(files[0], files[0]) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "depht=1", "--set-y", "depth=1"), "--set depht=1: unknown key"),
        (("--set", "depth=1", "--set-x", "depht=1"), "--set-x depht=1: unknown key"),
        (("--set-y", "depth=0"), "--set-y depth=0: "),
        (("--set-y", "depth=["), "--set-y depth=[: is not valid YAML"),
    ],
)
def test_what_is_wrong_is_told_at_the_option_that_said_it(
    options: tuple[str, ...], said: str
) -> None:
    result = graph("diff", "async", "async", *options)
    assert result.exit_code == 2
    assert said in result.stderr
