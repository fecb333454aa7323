"""The ruler above drawings over time: where steps begin, and where the axis is stretched."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.answers.timetable import Timetable
from .svg import number, tag, text, text_width, title
from .time_axis import TimeAxis

_WORDS, _MARKS, _TOP = 68, 77, 82  # baseline of the words; middle of the marks; top of the rules
_TOOTH = 3.0
RULES = ".view .stretch path{stroke:@muted;stroke-width:1}"


def ruler(times: Timetable, axis: TimeAxis, steps: int, bottom: float) -> Iterator[str]:
    """Lines down to `bottom` where steps begin, and a zigzag where time is drawn wider."""
    first, reached = min(times.starts.values()), 0.0
    for step in range(steps):
        x = axis.x(first + step * times.period_us)
        yield tag("line", class_="rule", x1=x, y1=_TOP - 8, x2=x, y2=bottom)
        words = f"step {step} · {step * times.told_us:,.0f} µs"
        if x >= reached:
            yield text(x, _WORDS, words, size=11, class_="muted")
            reached = x + text_width(words, 11) + 8
    end = max(times.ends.values()) + (steps - 1) * times.period_us
    yield from _stretches(axis, end)


def _stretches(axis: TimeAxis, end: float) -> Iterator[str]:
    for start, stop, times_wider in axis.stretches(end):
        left, right = axis.x(start), axis.x(stop)
        said = (
            f"{stop - start:,.4g} µs drawn {times_wider:,.3g} times as wide as where the axis "
            "is not stretched"
        )
        line = tag("path", d=_zigzag(left, right))
        yield tag("g", title(said), line, class_="stretch")


def _zigzag(left: float, right: float) -> str:
    teeth = max(round((right - left) / (2 * _TOOTH)), 1)
    width = (right - left) / (2 * teeth)
    steps = f"l{number(width)} {number(-_TOOTH)}l{number(width)} {number(_TOOTH)}"
    return f"M{number(left)} {number(_MARKS + _TOOTH / 2)}" + steps * teeth
