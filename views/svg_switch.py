"""A switch between two plans: what each actor runs around it, and what waits once.

A lane for each actor. Ops of the plan before are pale and those of the plan after coloured, by
step; the dashed line is where the first op of step 0 begins. Red arrows are the waits that take
place once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..graph.answers.switches import needed_for
from ..graph.switch import Instance, Switch
from ..timelines.switched import switch_spans, switch_timeline
from ..timelines.timeline import Span, Timeline
from .svg import clipped, document, legend_lines, number, step_class, tag, text, text_width, title

WIDTH, MARGIN, LANE, GAP, TOP = 1200.0, 14.0, 34.0, 12.0, 76.0
RULES = (
    ".switch .box{stroke:@bg;stroke-width:1}.switch .before .box{fill-opacity:.35}"
    ".switch .begins{stroke:@ink;stroke-dasharray:5 4}"
)


@dataclass(frozen=True)
class _Sheet:
    """Where everything lies."""

    switch: Switch
    timeline: Timeline
    spans: Mapping[Instance, Span]
    left: float
    right: float
    scale: float
    tops: Mapping[str, float]

    def x(self, us: float) -> float:
        return self.left + us * self.scale


def switch_svg(switch: Switch, *, steps: int = 3, width: float = WIDTH) -> str:
    """The steps before and after the switch as one SVG, so many of each. Raises nothing."""
    timeline = switch_timeline(switch, steps)
    names = max(text_width(actor, 13, bold=True) for actor in timeline.actors)
    left = MARGIN + min(names, 150) + 10
    last = max((span.end_us for span in timeline.events), default=0.0) or 1.0
    tops = {actor: TOP + (LANE + GAP) * n for n, actor in enumerate(timeline.actors)}
    right = width - MARGIN
    spans = switch_spans(switch, steps)
    sheet = _Sheet(switch, timeline, spans, left, right, (right - left) / last, tops)
    bottom = TOP + (LANE + GAP) * len(tops)
    heading = f"from {switch.before.graph.name} to {switch.after.graph.name}"
    said = _said(switch)
    legend = [
        "Pale: the plan before. Full colours, by step: the plan after. Dashed: step 0 begins.",
        "Red arrows: waits that take place once. All other orders are those of the two plans.",
    ]
    parts = [
        text(MARGIN, 28, clipped(heading, 16, width - 2 * MARGIN, bold=True), size=16, bold=True),
        text(MARGIN, 48, clipped(said, 13, width - 2 * MARGIN), size=13, class_="muted"),
        *_grounds(sheet, width),
        *_boxes(sheet),
        *_begins(sheet, bottom),
        *_waits(sheet),
        *legend_lines(legend, MARGIN, bottom + 16),
    ]
    return document("switch", heading, width, bottom + 46, parts, RULES)


def _said(switch: Switch) -> str:
    waits = f"{len(switch.waits)} wait{'s' * (len(switch.waits) != 1)} once"
    return (
        f"{len(switch.crossings)} requirements between the two, {waits}; steps are "
        f"{switch.costs_us:,.6g} µs late once, {switch.drained_us:,.6g} µs if drained"
    )


def _grounds(sheet: _Sheet, width: float) -> Iterator[str]:
    for actor, top in sheet.tops.items():
        yield tag("rect", class_="band", x=0, y=top - 3, width=width, height=LANE + 6)
        name = clipped(actor, 13, 150, bold=True)
        yield text(MARGIN, top + LANE / 2 + 5, name, size=13, bold=True)


def _boxes(sheet: _Sheet) -> Iterator[str]:
    for span in sheet.timeline.events:
        left, right = sheet.x(span.start_us), sheet.x(span.end_us)
        top = sheet.tops[span.actor]
        part = "after" if span.step >= 0 else "before"
        name = span.op.replace(".host", "").replace(".device", "")
        label = clipped(f"{name} {span.step:+d}", 11, right - left - 4)
        said = f"{span.op} of step {span.step:+d}, by the plan {part}: {_times(span)}"
        written = label not in ("", "…")
        yield tag(
            "g",
            title(said),
            tag(
                "rect",
                class_=f"box {step_class(span.step)}",
                x=left,
                y=top,
                width=max(right - left, 0.6),
                height=LANE,
                rx=3,
            ),
            text((left + right) / 2, top + LANE / 2 + 4, label, size=11, anchor="middle")
            if written
            else "",
            class_=f"op {part}",
            data_op=span.op,
            data_actor=span.actor,
            data_step=str(span.step),
        )


def _times(span: Span) -> str:
    return f"{span.start_us:,.0f} to {span.end_us:,.0f} µs on {span.actor}"


def _begins(sheet: _Sheet, bottom: float) -> Iterator[str]:
    first = [span.start_us for span in sheet.timeline.events if span.step == 0]
    if first:
        x = sheet.x(min(first))
        yield tag("line", class_="begins", x1=x, y1=TOP - 10, x2=x, y2=bottom)


def _waits(sheet: _Sheet) -> Iterator[str]:
    """A skipped op takes no time, but others may wait for it, or it for others."""
    for wait in sheet.switch.waits:
        source, target = sheet.spans[wait.source], sheet.spans[wait.target]
        down = sheet.tops[target.actor] > sheet.tops[source.actor]
        x1, y1 = sheet.x(source.end_us), sheet.tops[source.actor] + (LANE if down else 0)
        x2, y2 = sheet.x(target.start_us), sheet.tops[target.actor] + (0 if down else LANE)
        if not all(sheet.left <= x <= sheet.right for x in (x1, x2)):
            continue
        bend = (y1 + y2) / 2
        path = f"M{_xy(x1, y1)}C{_xy(x1, bend)} {_xy(x2, bend)} {_xy(x2, y2)}"
        said = f"{wait.target} waits for {wait.source}, once ({needed_for(wait.protects)})"
        yield tag(
            "g",
            title(said),
            tag("path", d=path, marker_end="url(#switch-tip-wait)"),
            class_="wait",
            data_from=wait.source.op,
            data_to=wait.target.op,
            data_step=str(wait.target.step),
        )


def _xy(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"
