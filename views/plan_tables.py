"""What stands under the lanes: period, waits, slots, and how to read the drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..graph.answers.leases import leases_in_words
from ..graph.plan import Plan, Wait
from .drawn import critical_cycle, slot_words
from .svg import clipped, flowed, legend_lines, text, text_width
from .time_axis import STRETCHED
from .words import across, later

_LEADS, _LINE, _APART = 70, 16, 10  # width of the first column; of lines and tables


def tables(
    plan: Plan, key: Mapping[str, str], *, left: float, right: float, y: float, stretched: bool
) -> tuple[list[str], float]:
    """The tables from y down, and the y of the last line.

    `key` has what stands for each op whose name is not in its box; `stretched` says that the time
    axis is.
    """
    parts: list[str] = []
    column, room = left + _LEADS, right - left - _LEADS
    for lead, lines in _flows(plan, key, room):
        parts.append(text(left, y + _APART + _LINE, lead, bold=True))
        y += _APART
        for line in lines:
            y += _LINE
            parts.append(text(column, y, line))
    if plan.slots:
        parts.append(text(left, y + _APART + _LINE, "slots", bold=True))
        cells, y = _slot_cells(plan, column, room, y + _APART + _LINE)
        parts += cells
    y += _APART
    legend = flowed("", _legend(plan, stretched), right - left, 12, " ")
    parts += legend_lines(legend, left, y + _LINE)
    return parts, y + _LINE * len(legend)


def _flows(plan: Plan, key: Mapping[str, str], room: float) -> Iterator[tuple[str, Iterable[str]]]:
    lead = f"{plan.step_us:,.0f} µs" + (", bound by" if plan.critical_cycle else "")
    yield "period", flowed(lead, critical_cycle(plan), room, 12, " ")
    yield "costs", flowed("", plan.costs_from.split(), room, 12, " ")
    if plan.waits:
        yield "waits", [line for wait in plan.waits for line in _wait_lines(plan, wait, room)]
    if said := leases_in_words(plan):
        yield "keys", flowed("", said, room, 12, " · ")
    for note in plan.notes:
        yield "note", flowed("", note.split(), room, 12, " ")
    if key:
        yield "key", flowed("", [f"[{sign}] {op}" for op, sign in key.items()], room, 12, " · ")


def _wait_lines(plan: Plan, wait: Wait, room: float) -> list[str]:
    """`a.device → b.host, step+1 (compute ⇒ driver): RAW x, WAR y`."""
    names = dict.fromkeys(f"{p.hazard} {p.value}".strip() for p in wait.protects)
    said = [name.replace("LAUNCH", "launch order") for name in names] or ["launch order"]
    ends = ", ".join(filter(None, [f"{wait.source} → {wait.target}", later(wait.distance)]))
    *most, last = said
    items = [*(f"{name}," for name in most), last]
    return flowed(f"{ends} ({across(plan, wait)}):", items, room, 12, " ")


def _slot_cells(plan: Plan, left: float, room: float, y: float) -> tuple[list[str], float]:
    """The number of slots and the place of each value, in columns; and the y of the last line."""
    cells = [(clipped(value, 12, 160), slot_words(plan, value)) for value in plan.slots]
    first = max(text_width(name, 12) for name, _ in cells) + 10
    pitch = first + max(text_width(words, 12) for _, words in cells) + 26
    columns = max(int((room + 26) // pitch), 1)
    parts = []
    for k, (name, words) in enumerate(cells):
        x, at = left + pitch * (k % columns), y + _LINE * (k // columns)
        parts += [text(x, at, name), text(x + first, at, words, class_="muted")]
    return parts, y + _LINE * ((len(cells) - 1) // columns)


def _legend(plan: Plan, stretched: bool) -> Iterator[str]:
    yield "Colour: step."
    if plan.waits:
        yield "Red: the waits, and what they protect (+2: and two more)."
    yield "Dotted: orderings that need no wait, each drawn once."
    yield "Outlined: the cycle that sets the period."
    if stretched:
        yield STRETCHED
