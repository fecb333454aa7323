"""Plans as files: every form by its extension."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.views import png as png_file
from stepweave.views.dot import dot
from stepweave.views.files import EXTENSIONS, VIEWS, Drawing, drawn, form_of
from stepweave.views.mermaid import mermaid
from stepweave.views.svg import LIGHT
from stepweave.views.svg_dag import dag_svg
from stepweave.views.svg_lanes import lanes_svg
from stepweave.views.svg_slots import slots_svg
from tests.graph.pipelines import decode
from tests.views.drawings import canvas, parsed

DOTS = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(decode())


def test_the_extension_names_the_form() -> None:
    assert form_of("a/plan.SVG") == "svg"
    assert {form_of(f"x{extension}") for extension in EXTENSIONS} == set(EXTENSIONS.values())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plan.svgg", "unknown extension '.svgg' (did you mean '.svg'?); it may be .svg, .html"),
        ("plan.mermade", "did you mean '.mermaid'?"),
        ("plan.pdf", "unknown extension '.pdf'; it may be .svg"),
        ("plan", "add one of .svg, .html"),
    ],
)
def test_an_unknown_extension_is_refused_with_the_nearest_and_all(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        form_of(name)
    assert caught.value.message.startswith(f"{name}: ")
    assert said in caught.value.message


def test_each_view_has_its_steps_and_title(plan: Plan) -> None:
    assert drawn(plan, "svg", Drawing()) == lanes_svg(plan, steps=3)
    assert drawn(plan, "svg", Drawing("lanes", 5, "T")) == lanes_svg(plan, steps=5, title="T")
    assert drawn(plan, "svg", Drawing("dag", None, "T")) == dag_svg(plan, title="T")
    assert drawn(plan, "svg", Drawing("slots")) == slots_svg(plan, steps=4)
    assert drawn(plan, "svg", Drawing("slots", 2)) == slots_svg(plan, steps=2)
    assert VIEWS == ("lanes", "dag", "slots")


def test_texts_are_those_of_the_terminal(plan: Plan) -> None:
    assert drawn(plan, "dot", Drawing()) == dot(plan)
    assert drawn(plan, "mermaid", Drawing()) == mermaid(plan)
    assert json.loads(drawn(plan, "json", Drawing())) == plan.to_json()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any renderer."""
    monkeypatch.setattr(png_file, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)


@pytest.mark.usefixtures("bare")
def test_without_a_renderer_a_png_says_what_to_install(plan: Plan) -> None:
    with pytest.raises(ConfigError) as caught:
        drawn(plan, "png", Drawing())
    for program in ("cairosvg", "rsvg-convert", "inkscape", "chromium", ".svg"):
        assert program in caught.value.message


@pytest.mark.usefixtures("bare")
def test_renderers_get_a_light_drawing_with_a_size(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def render(command: list[str], **_: object) -> None:
        source, target = Path(command[-1]), Path(command[-2])
        seen.append((command, source.read_text(encoding="utf-8")))
        target.write_bytes(DOTS)

    monkeypatch.setattr("shutil.which", {"rsvg-convert": "/bin/rsvg-convert"}.get)
    monkeypatch.setattr(subprocess, "run", render)
    assert drawn(plan, "png", Drawing("dag")) == DOTS
    (command, svg), *rest = seen
    assert rest == []
    assert command[:3] == ["/bin/rsvg-convert", "-z", "2"]
    root = parsed(svg)
    assert 0 <= int(root.attrib["width"]) - canvas(root).right < 1
    assert 0 <= int(root.attrib["height"]) - canvas(root).bottom < 1
    assert "var(" not in svg
    assert LIGHT["wait"] in svg


@pytest.mark.usefixtures("bare")
def test_a_renderer_that_fails_is_followed_by_the_next(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def render(command: list[str], **_: object) -> None:
        tried.append(command[0])
        if command[0] == "chromium":
            shot = next(part for part in command if part.startswith("--screenshot="))
            Path(shot.partition("=")[2]).write_bytes(DOTS)
        else:
            raise subprocess.CalledProcessError(1, command[0])

    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", render)
    assert drawn(plan, "png", Drawing()) == DOTS
    assert tried == ["rsvg-convert", "inkscape", "chromium"]
