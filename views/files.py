"""What a file that shows a plan holds: the form that its extension names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..configs.errors import ConfigError, Mark
from ..graph.errors import did_you_mean
from ..graph.plan import Plan
from .dot import dot
from .mermaid import mermaid
from .png import png
from .svg_dag import dag_svg
from .svg_lanes import lanes_svg
from .svg_slots import slots_svg

EXTENSIONS = {
    ".svg": "svg",
    ".html": "html",
    ".htm": "html",
    ".png": "png",
    ".dot": "dot",
    ".gv": "dot",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".json": "json",
}
VIEWS = ("lanes", "dag", "slots")  # of .svg and .png


@dataclass(frozen=True)
class Drawing:
    """What to draw: `view` is one of `VIEWS`; steps and title are those of the view if None."""

    view: str = "lanes"
    steps: int | None = None
    title: str | None = None


def form_of(path: str) -> str:
    """The form that a file name asks for. Raises `ConfigError` for an unknown extension."""
    extension = Path(path).suffix.lower()
    if extension in EXTENSIONS:
        return EXTENSIONS[extension]
    known = ", ".join(EXTENSIONS)
    if not extension:
        message = f"the extension of a file says what to write; add one of {known}"
    else:
        near = did_you_mean(extension, EXTENSIONS)
        near = near if near.startswith(" (did") else ""
        message = f"unknown extension {extension!r}{near}; it may be {known}"
    raise ConfigError.at(Mark(path), message)


def drawn(plan: Plan, form: str, drawing: Drawing) -> str | bytes:
    """The plan in one of the forms of `EXTENSIONS`; bytes for png.

    Raises `ConfigError` where no program that can make a png is installed.
    """
    match form:
        case "dot":
            return dot(plan)
        case "mermaid":
            return mermaid(plan)
        case "json":
            return json.dumps(plan.to_json(), indent=2) + "\n"
        case "html":
            from .page import plan_page

            return plan_page(plan, steps=drawing.steps or 3, title=drawing.title)
        case "png":
            return png(_svg(plan, drawing))
        case _:
            return _svg(plan, drawing)


def _svg(plan: Plan, drawing: Drawing) -> str:
    views: dict[str, Callable[[], str]] = {
        "lanes": lambda: lanes_svg(plan, steps=drawing.steps or 3, title=drawing.title),
        "dag": lambda: dag_svg(plan, title=drawing.title),
        "slots": lambda: slots_svg(plan, steps=drawing.steps or 4, title=drawing.title),
    }
    return views[drawing.view]()
