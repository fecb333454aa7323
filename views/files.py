"""A plan written to a file, in the form that the file's extension names."""

from __future__ import annotations

import json
import os
import tempfile
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
            from .page import page

            return page(plan, steps=drawing.steps or 3, title=drawing.title)
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


def place(path: str) -> Path:
    """Where a file is to be. Raises `ConfigError` for a directory, or a place in none."""
    target = Path(path)
    if target.is_dir():
        raise ConfigError.at(Mark(path), "is a directory; name a file in it")
    if not target.parent.is_dir():
        raise ConfigError.at(Mark(path), f"there is no directory {str(target.parent)!r}; make it")
    return target


def save(path: str, content: str | bytes) -> None:
    """Write the file whole or not at all. Raises `ConfigError` where it cannot be written."""
    target = place(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            Path(name).chmod(0o644)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError.at(Mark(path), f"cannot be written: {error.strerror}") from error
