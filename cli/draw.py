"""`stepweave graph show`: the plan as a picture."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from ..views.files import Drawing, drawn
from ..views.lanes import lanes

if TYPE_CHECKING:
    from .graph import ShowOptions


def show(asked: ShowOptions) -> None:
    """Print the plan of a config in the form that is asked for."""
    plan = asked.plan()
    if asked.form != "lanes":
        print(str(drawn(plan, asked.form, Drawing())).rstrip("\n"))
        return
    width = asked.width or max(60, shutil.get_terminal_size((100, 24)).columns)
    color = _wants_color() if asked.color is None else asked.color
    print(lanes(plan, steps=asked.steps, width=width, color=color, proof=asked.proof).rstrip("\n"))


def _wants_color() -> bool:
    """A terminal that did not opt out (no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
