"""A load as a picture: throughput over time, and the latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..views import svg
from ..views.plot import ticks
from .load import Result
from .summary import LATENCIES, Distribution, throughput

_WIDTH, _HEIGHT = 760, 470
_LEFT, _RIGHT, _TOP = 74, 24, 64
_PLOT_HEIGHT = 200
_BARS_TOP = 348
_RULES = (
    ".view .axis{stroke:@muted}.view .curve{fill:none;stroke:@data;stroke-width:2}"
    ".view .bar{fill:@data}.view .failed{fill:@wait}"
)


def plot_svg(result: Result) -> str:
    """Output tokens in each second, and mean, median and percentiles of each latency."""
    summary, ran = result.summary, result.ran
    rates = throughput([each for each in ran.outcomes if each.error is None], ran.began_s)
    model = result.about.get("model_id", "")
    heading = f"{model}: {summary.completed} requests in {summary.seconds:.1f} s"
    parts = [
        svg.text(
            _LEFT, 24, svg.clipped(heading, 15, _WIDTH - _LEFT, bold=True), size=15, bold=True
        ),
        svg.text(_LEFT, 46, "output tokens in each second", size=12, class_="muted"),
        *_over_time(rates),
        *_failures(summary.failed),
    ]
    room = (_WIDTH - _LEFT - _RIGHT) / len(LATENCIES)
    for place, (key, (name, _)) in enumerate(LATENCIES.items()):
        parts += _bars(_LEFT + place * room, room - 22, name, summary.latencies[key])
    return svg.document("load", heading, _WIDTH, _HEIGHT, parts, _RULES)


def _over_time(rates: Sequence[float]) -> Iterator[str]:
    """A curve with a point for each second, at its middle."""
    bottom, right = _TOP + _PLOT_HEIGHT, _WIDTH - _RIGHT
    marks = ticks(max(rates, default=0.0) or 1.0)
    seconds = ticks(float(max(len(rates), 1)))

    def x(second: float) -> float:
        return _LEFT + second / seconds[-1] * (right - _LEFT)

    def y(rate: float) -> float:
        return bottom - rate / marks[-1] * _PLOT_HEIGHT

    for mark in marks:
        if mark:
            yield svg.tag("line", class_="rule", x1=_LEFT, x2=right, y1=y(mark), y2=y(mark))
        said = f"{mark:,.6g}"
        yield svg.text(_LEFT - 8, y(mark) + 4, said, anchor="end", size=11, class_="muted")
    for second in seconds:
        at = x(second)
        yield svg.tag("line", class_="axis", x1=at, x2=at, y1=bottom, y2=bottom + 5)
        yield svg.text(at, bottom + 20, f"{second:g}", anchor="middle", size=11, class_="muted")
    yield svg.tag("line", class_="axis", x1=_LEFT, x2=right, y1=bottom, y2=bottom)
    yield svg.text((_LEFT + right) / 2, bottom + 40, "seconds", anchor="middle", size=12)
    points = [f"{svg.number(x(at + 0.5))} {svg.number(y(rate))}" for at, rate in enumerate(rates)]
    if points:
        said = f"{max(rates):,.6g} tokens in the best second"
        curve = svg.tag("path", class_="curve", d=f"M{'L'.join(points)}")
        yield svg.tag("g", svg.title(said), curve, class_="throughput")


def _bars(left: float, room: float, name: str, found: Distribution) -> Iterator[str]:
    """A bar for the mean and for each percentile, with its number."""
    yield svg.text(left, _BARS_TOP - 14, f"{name}, ms", size=12, bold=True)
    if not found.count:
        return
    figures = [("mean", found.mean)]
    figures += [
        ("median" if wanted == 50.0 else f"P{wanted:g}", ms)
        for wanted, ms in found.percentiles.items()
    ]
    top = max(ms for _, ms in figures) or 1.0
    gap = min(26.0, (_HEIGHT - _BARS_TOP - 6) / len(figures))
    for place, (called, ms) in enumerate(figures):
        y, width = _BARS_TOP + place * gap, ms / top * room
        label = svg.text(left, y + 8, f"{called} {ms:,.2f}", size=min(11.0, gap * 0.45))
        bar = svg.tag("rect", class_="bar", x=left, y=y + gap * 0.45, width=width, height=4)
        said = svg.title(f"{name}, {called}: {ms:,.3f} ms")
        yield svg.tag("g", said, label, bar, class_="latency")


def _failures(failed: int) -> Iterator[str]:
    if failed:
        said = f"{failed} failed, not drawn"
        yield svg.text(_WIDTH - _RIGHT, 46, said, anchor="end", size=12, class_="failed")
