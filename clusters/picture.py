"""A comparison of layouts as a picture: throughput, latency, and where the time goes, for each."""

from __future__ import annotations

from collections.abc import Iterator

from ..views import svg
from .comparison import NOTICE, Comparison
from .simulation import Outcomes
from .spent import GAPS, MEANING, WORK
from .words import heading, verdict

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _BAR = 900, 310, 30, 118, 46, 20
_COLOURS = (*(f"step-{n}" for n in range(svg.STEP_COLOURS)), "wait", "ghost", "line")
_RULES = (
    "".join(f".view .part-{n}{{fill:@{colour}}}" for n, colour in enumerate(_COLOURS))
    + ".view .best{stroke:@ink;stroke-width:2;fill:none}"
)


def picture(found: Comparison) -> str:
    """A standalone SVG; its heading says that it is simulated."""
    height = _TOP + _ROW * len(found.found) + 34
    parts = [
        svg.text(
            20, 26, svg.clipped(heading(found), 15, _WIDTH - 40, bold=True), size=15, bold=True
        ),
        svg.text(20, 48, "where the time of the devices goes", size=12, class_="muted"),
        *_legend(),
    ]
    for place, each in enumerate(found.found):
        parts += _bar(each, _TOP + place * _ROW, best=each is found.best)
    last = list(verdict(found))[-1]
    parts.append(svg.text(20, height - 12, svg.clipped(last, 12, _WIDTH - 40), size=12))
    drawn = svg.document("cluster", heading(found), _WIDTH, height, parts, _RULES)
    return f"<!-- {NOTICE} -->\n{drawn}"


def _legend() -> Iterator[str]:
    x, y = 20.0, 72.0
    for number, name in enumerate((*WORK, *GAPS)):
        room = svg.text_width(name, 11) + 30
        if x + room > _WIDTH - 20:
            x, y = 20.0, y + 18
        box = svg.tag("rect", class_=f"part-{number}", x=x, y=y - 9, width=11, height=11)
        yield svg.tag("g", svg.title(MEANING[name]), box, svg.text(x + 16, y, name, size=11))
        x += room


def _bar(found: Outcomes, y: float, *, best: bool) -> Iterator[str]:
    """The layout's name and figures, and a bar whose parts are shares of the time."""
    summary = found.summary
    said = (
        f"{summary.output_throughput:,.0f} tokens/s · TTFT p99 "
        f"{summary.latencies['ttft'].percentiles[99.0]:,.0f} ms · TPOT p50 "
        f"{summary.latencies['tpot'].median:,.1f} ms"
    )
    yield svg.text(20, y + 12, str(found.layout), size=12, bold=best)
    yield svg.text(20, y + 27, svg.clipped(said, 10, _LEFT - 30), size=10, class_="muted")
    x, room = float(_LEFT), _WIDTH - _LEFT - _RIGHT
    for number, name in enumerate((*WORK, *GAPS)):
        width = found.shares[name] * room
        if width > 0:
            title = svg.title(f"{found.layout}: {name} {found.shares[name]:.1%}")
            rect = svg.tag("rect", class_=f"part-{number}", x=x, y=y, width=width, height=_BAR)
            yield svg.tag("g", title, rect, class_="part")
        x += width
    if best:
        yield svg.tag("rect", class_="best", x=_LEFT, y=y, width=room, height=_BAR)
