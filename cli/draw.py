"""`stepweave graph show`: the plan as a picture."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from ..configs.abstract import AbstractGraph
from ..configs.load import load
from ..configs.written import pipeline_yaml, plain_yaml
from ..views.files import Drawing, drawn
from ..views.lanes import lanes
from .settings import in_stages

if TYPE_CHECKING:
    from .graph import ShowOptions


def show(asked: ShowOptions) -> None:
    """Print the plan of a config in the form that is asked for, or the config itself."""
    if asked.yaml:
        print(_whole(asked), end="")
        return
    plan = asked.plan()
    if asked.form != "lanes":
        print(str(drawn(plan, asked.form, Drawing())).rstrip("\n"))
        return
    width = asked.width or max(60, shutil.get_terminal_size((100, 24)).columns)
    color = _wants_color() if asked.color is None else asked.color
    print(lanes(plan, steps=asked.steps, width=width, color=color, proof=asked.proof).rstrip("\n"))


def _whole(asked: ShowOptions) -> str:
    """The config as one file that extends no other; it is proved first, as it would be drawn."""
    graph = asked.plan().graph
    loaded = load(asked.config, in_stages(asked.settings, asked.pp))
    if isinstance(loaded.config, AbstractGraph):
        return plain_yaml(loaded.source.plain())
    heading = f"{asked.config}, merged with what it extends."
    return pipeline_yaml(loaded.config, heading, {node.name: node.stream for node in graph.nodes})


def _wants_color() -> bool:
    """A terminal that did not opt out (no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
