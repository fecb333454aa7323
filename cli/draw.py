"""`stepweave graph show`: the plan as a picture."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from ..graph.plan import Plan
from ..views.files import Drawing, drawn
from ..views.lanes import lanes
from .planned import planned


def show(
    name: str,
    overrides: Mapping[str, str],
    *,
    form: str,
    steps: int,
    width: int | None,
    color: bool | None,
    proof: bool = False,
    costs: str | None = None,
    rows: int | None = None,
) -> None:
    """Print the plan of a config in one of the forms; `proof` adds the requirements to lanes."""
    plan = planned(name, overrides, costs=costs, rows=rows)
    print(_drawn(plan, form, steps, width, color, proof))


def _drawn(
    plan: Plan, form: str, steps: int, width: int | None, color: bool | None, proof: bool
) -> str:
    if form != "lanes":
        return str(drawn(plan, form, Drawing())).rstrip("\n")
    columns = width or max(60, shutil.get_terminal_size((100, 24)).columns)
    painted = _wants_color() if color is None else color
    return lanes(plan, steps=steps, width=columns, color=painted, proof=proof).rstrip("\n")


def _wants_color() -> bool:
    """A terminal that did not opt out (no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ
