"""`stepweave graph render`: files by extension, text to stdout, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stepweave.cli.main import app
from stepweave.cli.planned import planned
from tests.views.drawings import groups, parsed, texts

CONFIG = "abstract_decode"


def render(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["graph", "render", *arguments])


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("a.svg", "<svg "),
        ("a.dot", "digraph "),
        ("a.gv", "digraph "),
        ("a.mmd", "flowchart LR"),
        ("a.mermaid", "flowchart LR"),
        ("a.json", "{"),
    ],
)
def test_a_file_is_written_in_the_form_of_its_extension(name: str, begins: str) -> None:
    result = render(CONFIG, "-o", name)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    size = Path(name).stat().st_size
    assert f"wrote {name} (" in result.stderr
    assert f"{size:,} bytes" in result.stderr
    assert Path(name).read_text(encoding="utf-8").startswith(begins)


def test_json_is_the_canonical_plan() -> None:
    assert render(CONFIG, "-o", "plan.json").exit_code == 0
    shown = CliRunner().invoke(app, ["graph", "show", CONFIG, "--format", "json"])
    assert Path("plan.json").read_text(encoding="utf-8") == shown.stdout
    assert json.loads(shown.stdout) == planned(CONFIG).to_json()


def test_settings_steps_view_and_title_reach_the_drawing() -> None:
    assert render(CONFIG, "-o", "x.svg", "--steps", "5", "--title", "A name").exit_code == 0
    root = parsed(Path("x.svg").read_text(encoding="utf-8"))
    assert texts(root)[0].words == "A name"
    assert {op.get("data-step") for op in groups(root, "op")} == set("01234")
    assert render(CONFIG, "-o", "x.svg", "--view", "slots").exit_code == 0
    assert parsed(Path("x.svg").read_text(encoding="utf-8")).get("class") == "view slots"
    Path("one.yaml").write_text("nodes: [{name: a, host: {cost_us: 5}}]\n", encoding="utf-8")
    one = ["one.yaml", "-o", "x.svg", "--view", "dag"]
    assert render(*one, "--set", "nodes=[{name: b, host: {cost_us: 7777}}]").exit_code == 0
    assert [each.words for each in texts(parsed(Path("x.svg").read_text(encoding="utf-8")))][
        4:6
    ] == [
        "b",
        "host · 7,777 µs",
    ]


def test_a_dash_writes_text_to_stdout() -> None:
    result = render(CONFIG, "-o", "-", "--format", "svg", "--view", "dag")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert parsed(result.stdout).get("class") == "view dag"


def test_the_format_goes_before_the_extension() -> None:
    assert render(CONFIG, "-o", "plan.txt", "--format", "dot").exit_code == 0
    assert Path("plan.txt").read_text(encoding="utf-8").startswith("digraph")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "plan.svgz"], "error: plan.svgz: unknown extension '.svgz' (did you mean '.svg'?)"),
        (["-o", "-"], "say what to write: --format svg"),
        (["-o", "-", "--format", "png"], "png is not text; name a file"),
        (["-o", "no/plan.svg"], "there is no directory 'no'; make it"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    result = render("not-even-a-config", *arguments)  # they show before anything is compiled
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_an_unsound_config_writes_nothing() -> None:
    Path("bad.yaml").write_text(
        "values: {x: {place: device}}\n"
        "nodes:\n"
        "  - name: a\n"
        "    stream: s\n"
        "    device: {reads: [y], writes: [x]}\n",
        encoding="utf-8",
    )
    result = render("bad.yaml", "-o", "plan.svg")
    assert result.exit_code != 0
    assert not Path("plan.svg").exists()
