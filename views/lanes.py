"""The plan for terminals: lanes over some steps, then waits, slots, period and requirements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters, digits

from ..graph.plan import Plan
from ..graph.timetable import Timetable, timetable
from .words import across, carried, clip, count, protected

_STEP_COLOURS = ("36", "33", "35", "32", "34", "31")  # ANSI: cyan, yellow, magenta, green, …


@dataclass(frozen=True)
class _Block:
    """One op of one step, as it is drawn."""

    op: str
    step: int
    start: float
    end: float


def lanes(plan: Plan, *, steps: int = 3, width: int = 80, color: bool = False) -> str:
    """The plan for people: lanes over some steps, then waits, slots, period, requirements.

    One lane for each actor, in steady state, every op as early as it may. The time axis is
    stretched where ops would be too short to see. No line is longer than `width`.
    """
    width = max(width, 40)
    counts = [
        count(len(plan.actors), "actor"),
        count(len(plan.waits), "wait"),
        count(plan.requirements, "requirement"),
    ]
    sections = [
        _flow(f"{plan.graph.name}:", counts, width, gap=", ", indent=0),
        _lane_lines(plan, max(steps, 1), width, color),
        _wait_lines(plan, width),
        _slot_lines(plan, width),
        _period_lines(plan, width),
        _edge_lines(plan, width),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _lane_lines(plan: Plan, steps: int, width: int, color: bool) -> list[str]:
    times = timetable(plan)
    rows = {
        actor: [
            _Block(
                op,
                step,
                times.starts[op] + step * times.period_us,
                times.ends[op] + step * times.period_us,
            )
            for op, _ in program
            for step in range(steps)
        ]
        for actor, program in plan.actors.items()
    }
    margin = min(max(len(actor) for actor in rows) + 1, width // 4)
    column = _columns([block for row in rows.values() for block in row], width - margin)
    letters = _letters(plan)
    lines, spelled = [], set()
    for actor, row in rows.items():
        drawn, at = [], 0
        for block in sorted(row, key=lambda block: (block.start, block.end)):
            start, end = max(column[block.start], at), column[block.end]
            if end <= start:
                continue
            name = block.op.replace(".host", "").replace(".device", "")  # the lane says which
            text, whole = _block_text(name, letters[block.op], block.step, end - start)
            if not whole:
                spelled.add(block.op)
            drawn.append(" " * (start - at) + _painted(text, block.step, color))
            at = end
        lines.append(clip(actor, margin - 1).ljust(margin) + "".join(drawn))
    lines.append(_axis(times, steps, column, margin, width))
    if _stretched(column):
        lines.append(
            " " * margin + "(stretched where ops would be too short to see)"[: width - margin]
        )
    key = [f"{letter} {op}" for op, letter in letters.items() if op in spelled]
    return [*lines, *_flow("key", key, width)]


def _columns(blocks: Sequence[_Block], width: int) -> dict[float, int]:
    """A column for every begin and end: in proportion to time, but no block gets lost.

    Every block has a least width, the widest that leaves much of the line to the clock.
    """
    instants = sorted({at for block in blocks for at in (block.start, block.end)})
    least: dict[float, int] = {}
    for smallest, share in ((6, 0.6), (5, 0.6), (4, 0.6), (3, 0.6), (2, 1.0), (1, 1.0), (0, 1.0)):
        least = _packed(blocks, instants, smallest)
        if least[instants[-1]] <= share * width:
            break
    spare = max(width - least[instants[-1]], 0)
    first, span = instants[0], (instants[-1] - instants[0]) or 1.0
    return {at: min(least[at] + int(spare * (at - first) / span), width) for at in instants}


def _stretched(column: Mapping[float, int]) -> bool:
    """Whether some instant stands more than two columns from where the clock puts it."""
    first, last = min(column), max(column)
    scale = column[last] / ((last - first) or 1.0)
    return any(abs(place - (at - first) * scale) > 2 for at, place in column.items())


def _packed(blocks: Sequence[_Block], instants: Sequence[float], smallest: int) -> dict[float, int]:
    """The leftmost columns that keep order and give every block this width."""
    begun: dict[float, list[float]] = {}
    for block in blocks:
        begun.setdefault(block.end, []).append(block.start)
    found: dict[float, int] = {}
    latest = 0
    for at in instants:
        latest = max([latest, *(found[start] + smallest for start in begun.get(at, ()))])
        found[at] = latest
    return found


def _letters(plan: Plan) -> dict[str, str]:
    """A letter for each op, for where its name has no room."""
    return dict(zip(plan.graph.vertices, _symbols(), strict=False))


def _symbols() -> Iterator[str]:
    yield from ascii_letters
    for first in ascii_letters:
        for second in digits:
            yield first + second


def _block_text(name: str, letter: str, step: int, width: int) -> tuple[str, bool]:
    """`├forward 0───┤`, and whether the name is whole."""
    room = width - 2
    for text, whole in ((f"{name} {step}", True), (f"{letter}{step}", False)):
        if len(text) <= room:
            return f"├{text.ljust(room, '─')}┤", whole
    return f"{letter}{step}"[:width].ljust(width), False


def _axis(
    times: Timetable, steps: int, column: Mapping[float, int], margin: int, width: int
) -> str:
    """Where each step begins, in µs."""
    line = "µs".ljust(margin)
    first = min(times.starts, key=lambda op: times.starts[op])
    for step in range(steps):
        at = times.starts[first] + step * times.period_us
        label = f"╵{at:,.0f}"
        place = margin + column[at]
        if place >= len(line) and place + len(label) <= width:
            line = line.ljust(place) + label
    return line


def _painted(text: str, step: int, color: bool) -> str:
    return f"\x1b[{_STEP_COLOURS[step % len(_STEP_COLOURS)]}m{text}\x1b[0m" if color else text


# --- the tables below the lanes ---------------------------------------------------------------


def _wait_lines(plan: Plan, width: int) -> list[str]:
    if not plan.waits:
        return _flow("waits", ["none:", "programs and launches", "order everything"], width, " ")
    lines = ["waits"]
    for wait in plan.waits:
        lines += _fit(
            [
                f"{wait.source} → {wait.target}",
                f"step{wait.distance:+d}",
                protected(wait),
                f"[{across(plan, wait)}, event {wait.source}]",
            ],
            width,
        )
    return lines


def _slot_lines(plan: Plan, width: int) -> list[str]:
    shown = [
        f"{name} {'fresh' if copies is None else copies}" for name, copies in plan.slots.items()
    ]
    return _flow("slots", shown, width)


def _period_lines(plan: Plan, width: int) -> list[str]:
    lines = [f"period  {plan.period_us:,.0f} µs a step"]
    if plan.critical_cycle:
        around = [*plan.critical_cycle, (plan.critical_cycle[0][0], 0)]
        hops = [f"{op} →" if d == 0 else f"{op} →({d:+d})" for op, d in around[:-1]]
        lines += _flow("bound by", [*hops, around[-1][0]], width, gap=" ")
    for note in plan.notes:
        lines += _flow("note", note.split(), width, gap=" ")
    return lines


def _edge_lines(plan: Plan, width: int) -> list[str]:
    """Every requirement: hazard and value, the two ops, their streams, and what meets it."""
    lines = ["requirements" if plan.edges else "requirements   none"]
    for edge in plan.edges:
        lines += _fit(
            [
                f"{edge.hazard} {carried(edge)}",
                f"{edge.source} → {edge.target}",
                f"step{edge.distance:+d}",
                f"{edge.from_stream} ⇒ {edge.to_stream}",
                f"by {edge.by}" + (f", event {edge.event}" if edge.event else ""),
            ],
            width,
        )
    return lines


def _fit(parts: Iterable[str], width: int) -> list[str]:
    """The parts of one entry on as few lines as they need, broken only between parts."""
    lines, line = [], " "
    for part in (clip(part, width - 6) for part in parts):
        if line.strip() and len(line) + 2 + len(part) > width:
            lines.append(line)
            line = "    "
        line += f" {part}" if not line.strip() else f"  {part}"
    return [*lines, line]


def _flow(
    title: str, items: Sequence[str], width: int, gap: str = " · ", indent: int = 8
) -> list[str]:
    """`title   item · item · item`, wrapped under the first item."""
    if not items:
        return []
    title = clip(title, width // 2)
    indent = max(len(title) + 1, indent)
    lines, line = [], title.ljust(indent)
    for item in (clip(item, width - indent - len(gap)) for item in items):
        lead = "" if len(line) == indent else gap
        if len(line) + len(lead) + len(item) > width:
            lines.append(line.rstrip())
            line, lead = " " * indent, ""
        line += lead + item
    return [*lines, line]
