"""A sweep as a picture: bars for terminals, lines for files.

The period over the values that were tried. Where the critical cycle changes, the curve has a
corner and the picture a mark: from there on something else is worth making faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10

from . import svg

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that was tried: its period in µs (None: refused), and what bounds it.

    `cycle` is a letter for the critical cycle, `bound` the actors on it.
    """

    value: str
    period_us: float | None
    cycle: str
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one curve, and its name where there are several."""

    samples: tuple[Sample, ...]
    name: str = ""


def chart(samples: Sequence[Sample], *, width: int = 80) -> list[str]:
    """Bars of the period from 0, the values below, and the cycle's letter where it changes."""
    periods = [sample.period_us for sample in samples if sample.period_us is not None]
    top = max(periods, default=0.0)
    if not top:
        return []
    whole, half = f"{top:,.6g}", f"{top / 2:,.6g}"
    margin = max(len(whole), len(half)) + 2
    shown = _thinned(samples, (width - margin) // 2)
    step = max(2, min(8, (width - margin) // len(shown)))
    rows = []
    for row in reversed(range(_ROWS)):
        bars = "".join(_bar(sample, top, row, step) for sample in shown)
        at = {_ROWS - 1: whole, _ROWS // 2 - 1: half}.get(row, "")
        rows.append(f"{at.rjust(margin - 2)} ┤{bars}" if at else f"{'':{margin - 1}}│{bars}")
    rows.append(f"{'0'.rjust(margin - 2)} └{'─' * (step * len(shown))}")
    rows.append(" " * margin + _spread([sample.value for sample in shown], step))
    letters = [
        sample.cycle if place == 0 or sample.cycle != shown[place - 1].cycle else ""
        for place, sample in enumerate(shown)
    ]
    rows.append(" " * margin + _spread(letters, step))
    return [row[:width].rstrip() for row in rows]


def _thinned(samples: Sequence[Sample], most: int) -> list[Sample]:
    if len(samples) <= most:
        return list(samples)
    last = len(samples) - 1
    return [samples[round(place * last / (most - 1))] for place in range(most)]


def _bar(sample: Sample, top: float, row: int, step: int) -> str:
    if sample.period_us is None:
        return ("×" if row == 0 else " ") * (step - 1) + " "
    height = round(sample.period_us / top * _ROWS * 8) - row * 8
    return _EIGHTHS[max(0, min(8, height))] * (step - 1) + " "


def _spread(labels: Sequence[str], step: int) -> str:
    """Each label under its bar; one that has no room is left out."""
    line = ""
    for place, label in enumerate(labels):
        if label and len(line) <= place * step:
            line = line.ljust(place * step) + label + " "
    return line.rstrip()


# --- SVG ------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 24, 64, 76
_LINE = 16  # between lines below the picture
_RULES = (
    ".view .axis{stroke:@muted}.view .curve{fill:none;stroke-width:2}"
    ".view .mark{stroke:@wait;stroke-dasharray:3 3}.view .mark-text{fill:@wait}"
    + "".join(
        f".view path.curve-{n}{{stroke:@{colour}}}.view circle.curve-{n}{{fill:@{colour}}}"
        for n, colour in enumerate(("data", "wait", "ghost", "ink", "muted"))
    )
)
_CURVES = 5  # then their colours repeat


@dataclass(frozen=True)
class _Frame:
    """Where values and periods lie in the drawing."""

    places: dict[str, float]  # by value, from 0 to 1
    top: float

    def x(self, value: str) -> float:
        return _LEFT + self.places[value] * (_WIDTH - _LEFT - _RIGHT)

    def y(self, period_us: float) -> float:
        return _HEIGHT - _BOTTOM - period_us / self.top * (_HEIGHT - _TOP - _BOTTOM)


def plot_svg(series: Sequence[Series], *, heading: str, label: str) -> str:
    """The period over the values of a sweep, a curve for each series, as a standalone SVG.

    `label` names the values. A vertical mark stands between two values where the critical cycle
    changes (with one series only; with several the points' titles tell).
    """
    values = list(dict.fromkeys(s.value for each in series for s in each.samples))
    periods = [s.period_us for each in series for s in each.samples if s.period_us is not None] or [
        1.0
    ]
    below = _legend(series) if len(series) > 1 else _bounds(series[0].samples)
    frame = _Frame(_places(values), ticks(max(periods) or 1.0)[-1])
    parts = [
        svg.text(
            _LEFT,
            24,
            svg.clipped(heading, 15, _WIDTH - _LEFT - _RIGHT, bold=True),
            size=15,
            bold=True,
        ),
        svg.text(_LEFT, 46, "period in µs a step", size=12, class_="muted"),
        *_axes(frame, values, label),
    ]
    if len(series) == 1:
        parts += _marks(frame, series[0].samples)
    for number, each in enumerate(series):
        parts += _curve(frame, each, number % _CURVES, label)
    parts += [part for line in below for part in line]
    height = _HEIGHT + _LINE * max(0, len(below) - 1)
    return svg.document("plot", heading, _WIDTH, height, parts, _RULES)


def _places(values: Sequence[str]) -> dict[str, float]:
    """Numbers in proportion, anything else one after another."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = [float(place) for place in range(len(values))]
    least, span = min(numbers), (max(numbers) - min(numbers)) or 1.0
    return {value: (number - least) / span for value, number in zip(values, numbers, strict=True)}


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to at least `top`."""
    raw = top / 4
    power = 10.0 ** floor(log10(raw))
    step = next(unit * power for unit in (1, 2, 2.5, 5, 10) if unit * power >= raw * 0.999)
    count = next(n for n in range(1, 20) if n * step >= top * 0.999)
    return [n * step for n in range(count + 1)]


def _axes(frame: _Frame, values: Sequence[str], label: str) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for tick in ticks(frame.top):
        y = frame.y(tick)
        if tick:
            parts.append(svg.tag("line", class_="rule", x1=_LEFT, x2=right, y1=y, y2=y))
        parts.append(
            svg.text(_LEFT - 8, y + 4, f"{tick:,.6g}", anchor="end", size=11, class_="muted")
        )
    end = float("-inf")
    for value in sorted(values, key=frame.x):
        x, half = frame.x(value), svg.text_width(value, 11) / 2
        parts.append(svg.tag("line", class_="axis", x1=x, x2=x, y1=bottom, y2=bottom + 5))
        if x - half > end + 6:
            parts.append(svg.text(x, bottom + 20, value, anchor="middle", size=11, class_="muted"))
            end = x + half
    parts.append(svg.tag("line", class_="axis", x1=_LEFT, x2=right, y1=bottom, y2=bottom))
    middle = (_LEFT + right) / 2
    return [*parts, svg.text(middle, bottom + 42, label, anchor="middle", size=12)]


def _marks(frame: _Frame, samples: Sequence[Sample]) -> list[str]:
    """A dashed line half-way between two values whose critical cycles differ."""
    known = sorted((s for s in samples if s.period_us is not None), key=lambda s: frame.x(s.value))
    parts = []
    for before, after in pairwise(known):
        if before.cycle == after.cycle:
            continue
        x = (frame.x(before.value) + frame.x(after.value)) / 2
        said = (
            f"critical cycle {before.cycle} up to {before.value}, {after.cycle} from {after.value}"
        )
        line = svg.tag("line", class_="mark", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM)
        letters = svg.text(
            x + 4, _TOP + 10, f"{before.cycle} | {after.cycle}", size=11, class_="mark-text"
        )
        parts.append(
            svg.tag(
                "g",
                svg.title(said),
                line,
                letters,
                class_="change",
                data_before=before.cycle,
                data_after=after.cycle,
            )
        )
    return parts


def _bounds(samples: Sequence[Sample]) -> list[list[str]]:
    """What the letters stand for, in order of the values, line by line."""
    said = dict.fromkeys(f"{s.cycle}: {s.bound}" for s in samples if s.cycle and s.bound)
    lines = svg.flowed("bound by ", list(said), _WIDTH - _LEFT - _RIGHT, 11)
    return [
        [svg.text(_LEFT, _HEIGHT - 14 + _LINE * row, line, size=11, class_="muted")]
        for row, line in enumerate(lines)
    ]


def _curve(frame: _Frame, series: Series, colour: int, label: str) -> list[str]:
    known = sorted(
        ((s, s.period_us) for s in series.samples if s.period_us is not None),
        key=lambda pair: frame.x(pair[0].value),
    )
    points = [(frame.x(s.value), frame.y(us)) for s, us in known]
    drawn = "L".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points)
    parts = [svg.tag("path", class_=f"curve curve-{colour}", d=f"M{drawn}")] if drawn else []
    for (sample, us), (x, y) in zip(known, points, strict=True):
        named = f"{series.name}, " if series.name else ""
        said = f"{named}{label} {sample.value}: {us:,.6g} µs a step, critical cycle {sample.cycle}"
        parts.append(
            svg.tag(
                "g",
                svg.title(said),
                svg.tag("circle", class_=f"curve-{colour}", cx=x, cy=y, r=3.5),
                class_="point",
                data_value=sample.value,
                data_cycle=sample.cycle,
            )
        )
    return parts


def _legend(series: Sequence[Series]) -> list[list[str]]:
    """The colour and the name of each curve, line by line."""
    lines: list[list[str]] = [[]]
    x = float(_LEFT)
    for number, each in enumerate(series):
        name = svg.clipped(each.name, 11, _WIDTH - _RIGHT - _LEFT - 13)
        width = 13 + svg.text_width(name, 11)
        if x + width > _WIDTH - _RIGHT and lines[-1]:
            lines.append([])
            x = float(_LEFT)
        y = _HEIGHT - 12 + _LINE * (len(lines) - 1)
        dot = svg.tag("circle", class_=f"curve-{number % _CURVES}", cx=x + 4, cy=y - 4, r=4)
        lines[-1] += [dot, svg.text(x + 13, y, name, size=11)]
        x += width + 16
    return lines
