"""The plan as swimlanes: what each actor runs over some steps in steady state, and what waits."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..graph.answers.timetable import Timetable, timetable
from ..graph.plan import Plan
from ..graph.planner.bounds import is_bound
from ..graph.planner.events import comm_edges
from .drawn import carries, ghost_edges, ghost_title, summary, wait_label, wait_title
from .label_rows import Note, place_notes
from .lane_names import LEAST, Label, lane_heights, op_labels, written
from .plan_tables import tables
from .ruler import RULES as RULER_RULES
from .ruler import ruler
from .svg import clipped, document, number, step_class, tag, text, text_width, title
from .time_axis import TimeAxis, time_axis

WIDTH, MARGIN = 1200, 14
GAP, ROW = 34, 15  # between lanes; of a label in a gap
RULES = (
    ".lanes .box{stroke:@bg;stroke-width:1}.lanes .critical{stroke:@ink;stroke-width:2.2}"
    ".lanes .wait-words{fill:@wait}.lanes .ghost-words{fill:@muted}"
    ".lanes .wait .casing{stroke:@bg;stroke-width:5;opacity:.8}"
)
_RANKS = ".lanes .comm path{stroke:@data;stroke-width:1.2;stroke-dasharray:8 3 2 3;fill:none}"


@dataclass(frozen=True)
class _Arc:
    """An ordering between two ops, in one of the steps that are drawn."""

    source: str
    target: str
    step: int
    distance: int


@dataclass(frozen=True)
class _Sheet:
    """Where everything lies."""

    plan: Plan
    times: Timetable
    axis: TimeAxis
    steps: int
    labels: dict[str, Label]
    heights: dict[str, float]
    tops: dict[str, float]  # of lanes; known once it is known which labels lie between them

    @cached_property
    def names(self) -> dict[str, list[tuple[float, float]]]:
        """From where to where each name in a lane reaches, in order."""
        return {
            actor: sorted(
                (sum(self.span(op, step)) / 2 - half, sum(self.span(op, step)) / 2 + half)
                for op, _ in program
                for half in [self.labels[op].width / 2]
                for step in range(self.steps)
            )
            for actor, program in self.plan.actors.items()
        }

    def span(self, op: str, step: int) -> tuple[float, float]:
        shift = step * self.times.period_us
        return self.axis.x(self.times.starts[op] + shift), self.axis.x(self.times.ends[op] + shift)

    def actor(self, op: str) -> str:
        return self.plan.graph.vertices[op].actor


def lanes_svg(plan: Plan, *, steps: int = 3, title: str | None = None, width: float = WIDTH) -> str:
    """The plan over `steps` steps as one SVG, or over as many as show each wait once.

    A lane for each actor, a colour for each step, red arrows for the waits, with what they
    protect. Dotted: orderings that need no wait, each once. Outlined: the critical cycle. It is
    `width` wide for up to four steps, or wider where the names of ops need it.
    """
    far = (abs(wait.distance) + 1 for wait in plan.waits if not is_bound(wait))
    steps = max(steps, 1, *far)
    heading = title or f"{plan.graph.name}: the plan over {steps} steps"
    times = timetable(plan)
    margin = MARGIN + min(max(text_width(actor, 13, bold=True) for actor in plan.actors), 150) + 10
    axis = _axis(times, steps, margin, width)
    right = axis.x(max(times.ends.values()) + (steps - 1) * times.period_us)
    width = max(right + MARGIN, 640)
    labels, key = op_labels(
        {op: axis.x(times.ends[op]) - axis.x(times.starts[op]) for op in times.starts}, steps
    )
    sheet = _Sheet(plan, times, axis, steps, labels, lane_heights(plan, labels), {})
    notes = list(_notes(sheet))
    placed, rows = place_notes(notes, len(plan.actors) + 1, margin, width - MARGIN)
    at = 78.0
    for index, actor in enumerate(plan.actors):
        at += (GAP if index else 12) + ROW * rows[index]
        sheet.tops[actor], at = at, at + sheet.heights[actor]
    bottom = at + 16 + ROW * rows[-1]
    below, end = tables(
        plan, key, left=MARGIN, right=width - MARGIN, y=bottom, stretched=axis.stretched
    )
    parts = [
        text(MARGIN, 28, clipped(heading, 16, width - 2 * MARGIN, bold=True), size=16, bold=True),
        text(MARGIN, 48, clipped(summary(plan), 13, width - 2 * MARGIN), size=13, class_="muted"),
        *_grounds(sheet, width),
        *ruler(times, axis, steps, bottom - 4),
        *_ghosts(sheet),
        *_boxes(sheet),
        *_meetings(sheet),
        *_waits(sheet),
        *_note_texts(sheet, notes, placed),
        *below,
    ]
    rules = RULES + RULER_RULES + (_RANKS if plan.graph.ranks else "")
    return document("lanes", heading, width, end + 12, parts, rules)


def _axis(times: Timetable, steps: int, left: float, width: float) -> TimeAxis:
    first = min(times.starts.values())
    last = max(times.ends.values()) + (steps - 1) * times.period_us
    room = (width - left - MARGIN) * max(1.0, steps / 4)
    return time_axis(times, first, last, left=left, room=room, least=LEAST)


# --- names in boxes ---------------------------------------------------------------------------


def _boxes(sheet: _Sheet) -> Iterator[str]:
    critical = {op for op, _ in sheet.plan.critical_cycle}
    for actor, program in sheet.plan.actors.items():
        for op, _ in sorted(program, key=lambda placed: placed[0] in critical):
            for step in range(sheet.steps):
                yield _box(sheet, op, actor, step, op in critical)


def _box(sheet: _Sheet, op: str, actor: str, step: int, critical: bool) -> str:
    left, right = sheet.span(op, step)
    top, height = sheet.tops[actor], sheet.heights[actor]
    start, end = sheet.times.starts[op], sheet.times.ends[op]
    shift = step * sheet.times.period_us
    said = f"{op} of step {step}: {start + shift:,.0f} to {end + shift:,.0f} µs on {actor}"
    return tag(
        "g",
        title(said),
        tag(
            "rect",
            class_=f"box{' critical' if critical else ''} {step_class(step)}",
            x=left,
            y=top,
            width=right - left,
            height=height,
            rx=3,
        ),
        *written(sheet.labels[op], sheet.steps - 1, step, (left + right) / 2, top + height / 2),
        class_="op",
        data_op=op,
        data_node=sheet.plan.graph.vertices[op].node.name,
        data_actor=actor,
        data_step=str(step),
    )


# --- orderings ----------------------------------------------------------------------------------


def _arcs(plan: Plan, steps: int) -> Iterator[tuple[int, _Arc]]:
    """Each wait, in every step in which both of its ends are drawn."""
    for index, wait in enumerate(plan.waits):
        for step in range(max(0, -wait.distance), steps - max(0, wait.distance)):
            yield index, _Arc(wait.source, wait.target, step, wait.distance)


def _ghost_arcs(plan: Plan, steps: int) -> Iterator[tuple[list[int], _Arc]]:
    """Each met requirement between actors, or carried on one, in a middle step."""
    for (source, target, distance), edges in ghost_edges(plan).items():
        within = range(max(0, -distance), steps - max(0, distance))
        actors = {plan.graph.vertices[op].actor for op in (source, target)}
        carried = carries([plan.edges[k] for k in edges])
        if within and (len(actors) > 1 or carried):
            yield edges, _Arc(source, target, within[(len(within) - 1) // 2], distance)


def _ends(sheet: _Sheet, arc: _Arc) -> tuple[float, float]:
    return (
        sheet.span(arc.source, arc.step)[1],
        sheet.span(arc.target, arc.step + arc.distance)[0],
    )


def _notes(sheet: _Sheet) -> Iterator[Note]:
    """The labels of orderings: of each wait at least once, of each carried read once."""
    labelled = set()
    for index, arc in _arcs(sheet.plan, sheet.steps):
        words = wait_label(sheet.plan, sheet.plan.waits[index])
        yield _note(sheet, arc, words, index not in labelled, "wait", {"data_wait": str(index)})
        labelled.add(index)
    for edges, arc in _ghost_arcs(sheet.plan, sheet.steps):
        if words := carries([sheet.plan.edges[k] for k in edges]):
            yield _note(sheet, arc, words, True, "ghost", {"data_edges": ",".join(map(str, edges))})


def _note(
    sheet: _Sheet, arc: _Arc, words: str, needed: bool, kind: str, data: Mapping[str, str]
) -> Note:
    """In the gap beside the target's lane, where the arrow crosses that gap."""
    actors = list(sheet.plan.actors)
    i, j = (actors.index(sheet.actor(op)) for op in (arc.source, arc.target))
    x1, x2 = _ends(sheet, arc)
    crossed = _crossings(sheet, arc)
    x = ((crossed[-1][1] if crossed else x1) + x2) / 2
    of_step = {**data, "data_step": str(arc.step)}
    return Note(j + 1 if j < i else j, x, text_width(words, 11), words, needed, kind, of_step)


def _crossings(sheet: _Sheet, arc: _Arc) -> list[tuple[str, float]]:
    """The lanes between those of the two ops, and where the arrow runs through each."""
    actors = list(sheet.plan.actors)
    i, j = (actors.index(sheet.actor(op)) for op in (arc.source, arc.target))
    between = actors[i + 1 : j] if j > i else actors[j + 1 : i][::-1]
    x1, x2 = _ends(sheet, arc)
    share = (x2 - x1) / (len(between) + 1)
    return [
        (actor, _past_names(sheet, actor, x1 + share * k))
        for k, actor in enumerate(between, start=1)
    ]


def _curve(sheet: _Sheet, arc: _Arc) -> str:
    """From the end of the source to the start of the target; past names in lanes between them."""
    x1, x2 = _ends(sheet, arc)
    a, b = sheet.actor(arc.source), sheet.actor(arc.target)
    if a == b:
        top = sheet.tops[a]
        over = f"C{_xy(x1 - 3, top - 18)} {_xy(x2 + 5, top - 18)} {_xy(x2 + 5, top)}"
        return f"M{_xy(x1 - 3, top)}{over}"
    down = sheet.tops[b] > sheet.tops[a]
    x, y = x1 - 3, sheet.tops[a] + (sheet.heights[a] if down else 0)
    path = f"M{_xy(x, y)}"
    for actor, past in _crossings(sheet, arc):
        upper, lower = sheet.tops[actor], sheet.tops[actor] + sheet.heights[actor]
        near, far = (upper, lower) if down else (lower, upper)
        path += f"{_bend(x, y, past, near)}L{_xy(past, far)}"
        x, y = past, far
    return path + _bend(x, y, x2 + 4, sheet.tops[b] + (0 if down else sheet.heights[b]))


def _bend(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (y + to_y) / 2
    return f"C{_xy(x, middle)} {_xy(to_x, middle)} {_xy(to_x, to_y)}"


def _past_names(sheet: _Sheet, actor: str, x: float) -> float:
    """The place nearest to x where a line through the lane crosses no name."""
    found = bisect(sheet.names[actor], (x, x))
    names = sheet.names[actor][max(found - 4, 0) : found + 4]
    edges = [x, *(edge for left, right in names for edge in (left - 3, right + 3))]
    free = [at for at in edges if not any(left - 2 < at < right + 2 for left, right in names)]
    return min(free, key=lambda at: (abs(at - x), at), default=x)


def _xy(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"


def _ghosts(sheet: _Sheet) -> Iterator[str]:
    for edges, arc in _ghost_arcs(sheet.plan, sheet.steps):
        yield tag(
            "g",
            title(ghost_title(sheet.plan, edges)),
            tag("path", d=_curve(sheet, arc), marker_end="url(#lanes-tip-ghost)"),
            class_="ghost",
            data_edges=",".join(map(str, edges)),
            data_from=arc.source,
            data_to=arc.target,
            data_distance=str(arc.distance),
            data_step=str(arc.step),
        )


def _meetings(sheet: _Sheet) -> Iterator[str]:
    """What the ends of a comm node wait for, from lane to lane of two ranks, in every step."""
    for source, target, distance, _ in comm_edges(sheet.plan.graph):
        for step in range(sheet.steps - distance):
            arc = _Arc(source, target, step, distance)
            yield tag(
                "g",
                title(f"{target} of step {step + distance} ends after {source} has begun"),
                tag("path", d=_curve(sheet, arc)),
                class_="comm",
                data_from=source,
                data_to=target,
                data_distance=str(distance),
                data_step=str(step),
            )


def _waits(sheet: _Sheet) -> Iterator[str]:
    for index, arc in _arcs(sheet.plan, sheet.steps):
        wait = sheet.plan.waits[index]
        curve = _curve(sheet, arc)
        yield tag(
            "g",
            title(wait_title(sheet.plan, wait)),
            tag("path", d=curve, class_="casing"),
            tag("path", d=curve, marker_end="url(#lanes-tip-wait)"),
            class_="wait",
            data_wait=str(index),
            data_from=wait.source,
            data_to=wait.target,
            data_distance=str(wait.distance),
            data_step=str(arc.step),
        )


def _note_texts(
    sheet: _Sheet, notes: list[Note], placed: dict[int, tuple[float, int]]
) -> Iterator[str]:
    """The labels, row by row from the lane below a gap upward."""
    actors = list(sheet.plan.actors)
    for index, (x, row) in placed.items():
        note = notes[index]
        if note.gap < len(actors):
            y = sheet.tops[actors[note.gap]] - 12 - ROW * row
        else:
            y = sheet.tops[actors[-1]] + sheet.heights[actors[-1]] + 16 + ROW * row
        yield text(x, y, note.words, size=11, class_=f"halo {note.kind}-words", data=note.data)


# --- around the lanes ---------------------------------------------------------------------------


def _grounds(sheet: _Sheet, width: float) -> Iterator[str]:
    streams = {node.stream for node in sheet.plan.graph.nodes if node.device}
    for actor, top in sheet.tops.items():
        height = sheet.heights[actor]
        yield tag("rect", class_="band", x=0, y=top - 4, width=width, height=height + 8)
        kind = "stream" if actor in streams else "thread"
        name = clipped(actor, 13, 150, bold=True)
        yield text(MARGIN, top + height / 2, name, size=13, bold=True)
        yield text(MARGIN, top + height / 2 + 14, kind, size=11, class_="muted")
