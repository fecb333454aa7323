"""How long each version of each value lives, and in which slot: from its write to its last read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..graph.answers.timetable import Timetable, timetable
from ..graph.plan import Edge, Plan
from .drawn import summary, wait_title
from .ruler import RULES as RULER_RULES
from .ruler import ruler
from .svg import (
    clipped,
    document,
    flowed,
    legend_lines,
    number,
    step_class,
    tag,
    text,
    text_width,
    title,
)
from .time_axis import STRETCHED, TimeAxis, time_axis

WIDTH, MARGIN, NAMES = 1200, 14, 330
LEAST, BAR, STACKED, APART, SMALL = 5.0, 22, 13, 8, 11
RULES = (
    ".slots .bar{stroke:@bg;stroke-width:1}.slots .write{fill:@ink}"
    ".slots .read{fill:@bg;stroke:@ink;stroke-width:1}.slots .wait-words{fill:@wait}"
)


@dataclass(frozen=True)
class _Access:
    """A read or write of one version; `later` is by how many steps its op is ahead of it."""

    op: str
    later: int
    mode: str


@dataclass(frozen=True)
class _Version:
    """One version of a value, from the start of its write to the end of its last access."""

    value: str
    slot: int
    step: int
    start: float
    end: float


@dataclass(frozen=True)
class _Row:
    """One slot of a value, or all versions of a fresh one, stacked where they live together."""

    value: str
    slot: int
    stacks: tuple[tuple[_Version, ...], ...]
    about: tuple[str, ...]  # lines under the name: who writes and reads it
    guarded: tuple[str, ...]  # and by which waits it is kept from being overwritten
    guards: tuple[tuple[int, Edge], ...]  # these waits, with the requirement that each meets

    @property
    def height(self) -> float:
        bars = BAR if len(self.stacks) < 2 else STACKED * len(self.stacks)
        return max(bars, 12 + SMALL * (len(self.about) + len(self.guarded)))


def slots_svg(plan: Plan, *, steps: int = 4, title: str | None = None) -> str:
    """The lifetimes of all values over `steps` steps as one SVG.

    A row for each slot of each value, one for a fresh value. A bar is one version, from the start
    of its write to the end of its last read, in the colour of its step; filled marks on it are
    writes, hollow ones reads. Red: the waits that guard a slot against being overwritten.
    """
    steps = max(steps, 1)
    heading = title or f"{plan.graph.name}: slots and lifetimes over {steps} steps"
    times = timetable(plan)
    accesses = {value: _accesses(plan, value) for value in plan.slots}
    guards = _guarding(plan)
    rows = [
        row
        for value, found in accesses.items()
        for row in _rows(plan, times, value, found, guards[value], steps)
    ]
    axis, width = _axis(times, rows, steps)
    tops, y = [], 84.0
    for k, row in enumerate(rows):
        y += APART if k and rows[k - 1].value == row.value else APART + 8
        tops.append(y)
        y += row.height
    legend = flowed("", _legend(axis, any(guards.values())), width - 2 * MARGIN, 12, " ")
    parts = [
        text(MARGIN, 28, clipped(heading, 16, width - 2 * MARGIN, bold=True), size=16, bold=True),
        text(MARGIN, 48, clipped(summary(plan), 13, width - 2 * MARGIN), size=13, class_="muted"),
        *ruler(times, axis, steps, y + 6),
    ]
    for row, top in zip(rows, tops, strict=True):
        parts += _named(plan, row, top, width)
        parts += _bars(times, axis, row, accesses[row.value], top)
    for row, top in zip(rows, tops, strict=True):
        parts += _guards(plan, times, axis, row, top, steps)
    parts += legend_lines(legend, MARGIN, y + 28)
    return document("slots", heading, width, y + 28 + 16 * len(legend), parts, RULES + RULER_RULES)


def _accesses(plan: Plan, value: str) -> list[_Access]:
    found = []
    for op in plan.graph.vertices.values():
        if value in op.op.writes:
            found.append(_Access(op.name, 0, "write"))
        found += [_Access(op.name, r.carry, "read") for r in op.op.reads if r.name == value]
    return sorted(found, key=lambda access: access.mode != "write")


def _rows(
    plan: Plan,
    times: Timetable,
    value: str,
    accesses: Sequence[_Access],
    guards: Sequence[tuple[int, Edge]],
    steps: int,
) -> Iterator[_Row]:
    copies = plan.slots[value]
    versions = [
        _Version(value, _slot(plan, value, step), step, *_life(times, accesses, step))
        for step in range(steps if accesses and accesses[0].mode == "write" else 0)
    ]
    about = tuple(_who(accesses))
    guarded = tuple(line for k in dict.fromkeys(k for k, _ in guards) for line in _by(plan, k))
    if copies is None:
        yield _Row(value, 0, _stacked(versions), about, (), ())
        return
    # A firing that shares the slots with others comes to some of them only.
    slots = sorted({_slot(plan, value, version) for version in range(copies)})
    for slot in slots:
        stack = tuple(version for version in versions if version.slot == slot)
        lines = ((), ()) if slot != slots[0] else (about, guarded)
        yield _Row(value, slot, (stack,), *lines, tuple(guards))


def _slot(plan: Plan, value: str, version: int) -> int:
    copies = plan.slots[value]
    return 0 if copies is None else plan.graph.values[value].slot(version, copies)[1]


def _stacked(versions: Sequence[_Version]) -> tuple[tuple[_Version, ...], ...]:
    """The versions in as few stacks as keep those apart that live at the same time."""
    stacks: list[list[_Version]] = []
    for version in versions:
        stack = next((each for each in stacks if each[-1].end <= version.start + 1e-6), None)
        if stack is None:
            stacks.append([version])
        else:
            stack.append(version)
    return tuple(map(tuple, stacks))


def _life(times: Timetable, accesses: Sequence[_Access], step: int) -> tuple[float, float]:
    period = times.period_us
    start = times.starts[accesses[0].op] + step * period
    return start, max(times.ends[a.op] + (step + a.later) * period for a in accesses)


def _axis(times: Timetable, rows: Sequence[_Row], steps: int) -> tuple[TimeAxis, float]:
    left = MARGIN + NAMES
    ends = [v.end for row in rows for stack in row.stacks for v in stack]
    first = min(times.starts.values())
    last = max([*ends, first + steps * times.period_us])
    room = (WIDTH - left - MARGIN) * max(1.0, steps / 5)
    axis = time_axis(times, first, last, left=left, room=room, least=LEAST)
    return axis, axis.x(last) + MARGIN


def _named(plan: Plan, row: _Row, top: float, width: float) -> Iterator[str]:
    """The value, its place and slot, and on the first row who writes, reads and guards it."""
    yield tag("rect", class_="band", x=0, y=top - 3, width=width, height=row.height + 6)
    copies = plan.slots[row.value]
    place = plan.graph.values[row.value].place
    name = clipped(row.value, 12, 150, bold=True)
    words = f"fresh · {place}" if copies is None else f"slot {row.slot} · {place}"
    yield text(MARGIN, top + 10, name, bold=True)
    yield text(MARGIN + text_width(name, 12, bold=True) + 8, top + 10, words, class_="muted")
    for k, line in enumerate((*row.about, *row.guarded), start=1):
        class_ = "muted" if k <= len(row.about) else "wait-words"
        yield text(MARGIN, top + 10 + SMALL * k, line, size=10, class_=class_)


def _who(accesses: Sequence[_Access]) -> list[str]:
    """`schedule.host → forward.host, commit.host@-1`, broken into lines."""
    writers = [a.op for a in accesses if a.mode == "write"]
    readers = [a.op + (f"@-{a.later}" if a.later else "") for a in accesses if a.mode == "read"]
    *most, last = readers or ["no reader"]
    lead = f"{', '.join(writers) or 'given'} →"
    return flowed(lead, [*(f"{reader}," for reader in most), last], NAMES - 12, 10, " ")


def _by(plan: Plan, index: int) -> list[str]:
    wait = plan.waits[index]
    ends = [f"{wait.source} →", wait.target]
    return flowed("guarded by a wait:", ends, NAMES - 12, 10, " ")


def _bars(
    times: Timetable, axis: TimeAxis, row: _Row, accesses: Sequence[_Access], top: float
) -> Iterator[str]:
    for k, stack in enumerate(row.stacks):
        height = BAR if len(row.stacks) < 2 else STACKED - 1
        y = top + k * STACKED
        for version in stack:
            yield _bar(axis, version, y, height)
            for access in accesses:
                yield _mark(times, axis, version, access, y, height)


def _bar(axis: TimeAxis, version: _Version, y: float, height: float) -> str:
    left, right = axis.x(version.start), axis.x(version.end)
    words = f"step {version.step}"
    said = (
        f"{version.value} of step {version.step}, slot {version.slot}: "
        f"{version.start:,.0f} to {version.end:,.0f} µs"
    )
    fits = text_width(words, 10) + 8 <= right - left
    middle, base = (left + right) / 2, y + height / 2 + 3.5
    inner = text(middle, base, words, size=10, anchor="middle", class_="on-step")
    rect = tag(
        "rect",
        class_=f"bar {step_class(version.step)}",
        x=left,
        y=y,
        width=right - left,
        height=height,
        rx=2,
    )
    return tag(
        "g",
        title(said),
        rect,
        inner if fits else "",
        class_="version",
        data_value=version.value,
        data_slot=str(version.slot),
        data_step=str(version.step),
    )


def _mark(
    times: Timetable, axis: TimeAxis, version: _Version, access: _Access, y: float, height: float
) -> str:
    """Writes along the top of the bar, reads along its bottom, as long as the op runs."""
    step = version.step + access.later
    shift = step * times.period_us
    left, right = axis.x(times.starts[access.op] + shift), axis.x(times.ends[access.op] + shift)
    verb = "writes" if access.mode == "write" else "reads"
    said = f"{access.op} of step {step} {verb} {version.value} of step {version.step}"
    thick = 4 if height >= BAR else 3
    return tag(
        "g",
        title(said),
        tag(
            "rect",
            class_=access.mode,
            x=left + 0.5,
            y=y + (0 if access.mode == "write" else height - thick),
            width=right - left - 1,
            height=thick,
        ),
        class_="access",
        data_value=version.value,
        data_op=access.op,
        data_step=str(step),
        data_mode=access.mode,
    )


def _guarding(plan: Plan) -> dict[str, list[tuple[int, Edge]]]:
    """For each value the WAR and WAW on its slots that a wait of their own meets, by its index."""
    waits = {(wait.source, wait.target, wait.distance): k for k, wait in enumerate(plan.waits)}
    found: dict[str, list[tuple[int, Edge]]] = {value: [] for value in plan.slots}
    for edge in plan.edges:
        index = waits.get((edge.source, edge.target, edge.distance))
        if index is not None and edge.hazard != "RAW" and edge.value in found:
            found[edge.value].append((index, edge))
    return found


def _guards(
    plan: Plan, times: Timetable, axis: TimeAxis, row: _Row, top: float, steps: int
) -> Iterator[str]:
    """From the last access of a version to the write of the next in the same slot."""
    for index, edge in row.guards:
        for version in range(steps - (plan.slots[row.value] or 1)):
            if _slot(plan, row.value, version) != row.slot:
                continue
            step = version + (edge.carry if edge.hazard == "WAR" else 0)
            x1 = axis.x(times.ends[edge.source] + step * times.period_us)
            x2 = axis.x(times.starts[edge.target] + (step + edge.distance) * times.period_us)
            yield _guard(plan, index, step, x1, x2, top)


def _guard(plan: Plan, index: int, step: int, x1: float, x2: float, top: float) -> str:
    wait = plan.waits[index]
    over = f"{number(x1)} {number(top - 12)} {number(x2)} {number(top - 12)}"
    curve = f"M{number(x1)} {number(top)}C{over} {number(x2)} {number(top)}"
    return tag(
        "g",
        title(wait_title(plan, wait)),
        tag("path", d=curve, marker_end="url(#slots-tip-wait)"),
        class_="wait",
        data_wait=str(index),
        data_from=wait.source,
        data_to=wait.target,
        data_distance=str(wait.distance),
        data_step=str(step),
    )


def _legend(axis: TimeAxis, guarded: bool) -> Iterator[str]:
    yield "A bar: one version of a value, from the start of its write to the end of its last read."
    yield "Colour: step. Filled, above: the write. Hollow, below: reads."
    if guarded:
        yield "Red: a wait that keeps a slot from being overwritten too early."
    if axis.stretched:
        yield STRETCHED
