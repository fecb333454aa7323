"""The plan for terminals: lanes over some steps, then waits, slots and period.

Every step is drawn with the same widths: the columns of a period repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_letters, digits

from ..graph import arguments
from ..graph.answers.folding import folded_waits
from ..graph.answers.leases import leases_in_words
from ..graph.answers.timetable import Timetable, timetable
from ..graph.plan import Plan
from .words import a_step, across, carried, clip, count, protected

_STEP_COLOURS = ("36", "33", "35", "32", "34", "31")  # ANSI: cyan, yellow, magenta, green, …


def lanes(
    plan: Plan, *, steps: int = 3, width: int = 80, color: bool = False, proof: bool = False
) -> str:
    """The plan as text: lanes over some steps, then waits, slots and period.

    One lane for each actor, in steady state, every op as early as it may; below them a line for
    each wait, from the end of the op that is waited for to the start of the one that waits. The
    time axis is stretched where ops would be too short to see. With `proof`, every requirement and
    what meets it. No line is longer than `width`. Raises `GraphError` if `plan` is not a plan.
    """
    arguments.a("lanes", "plan", plan, Plan, arguments.A_PLAN)
    steps = arguments.whole("lanes", "steps", steps, 0)
    width = max(arguments.whole("lanes", "width", width, 0, 1 << 31), 40)
    counts = [
        count(len(plan.actors), "actor"),
        count(len(plan.waits), "wait"),
        count(plan.requirements, "requirement"),
    ]
    sections = [
        _flow(f"{plan.graph.name}:", counts, width, gap=", ", indent=0),
        _lane_lines(plan, max(steps, 1), width, color),
        _wait_lines(plan, width),
        _meeting_lines(plan, width),
        _slot_lines(plan, width),
        _flow("keys", leases_in_words(plan), width),
        period_lines(plan, width),
        _edge_lines(plan, width) if proof else [],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


@dataclass(frozen=True)
class _Columns:
    """Where instants lie in the lanes: the same columns in every period."""

    times: Timetable
    phases: Mapping[int, int]  # columns from the begin of a period, by instant in its grain
    period: int  # columns of a period

    def at(self, us: float) -> int:
        turn, phase = _phase(us, self.times.period_us)
        first_turn, first = _phase(min(self.times.starts.values()), self.times.period_us)
        return (turn - first_turn) * self.period + self.phases[phase] - self.phases[first]

    def of(self, op: str, step: int) -> tuple[int, int]:
        """Where an op of a step begins and ends."""
        later = step * self.period  # not of its time, which may be rounded otherwise
        return self.at(self.times.starts[op]) + later, self.at(self.times.ends[op]) + later

    @property
    def stretched(self) -> bool:
        """Whether some instant stands more than a column from where the clock puts it."""
        scale = self.period / _GRAINS
        return any(abs(column - phase * scale) > 1 for phase, column in self.phases.items())


_GRAINS = 1_000_000  # in a period


def _phase(us: float, period: float) -> tuple[int, int]:
    return divmod(round(us / period * _GRAINS), _GRAINS)


def _columns(times: Timetable, steps: int, room: int) -> _Columns:
    """The columns of a period; ops are as wide as leaves some of it to the clock."""
    end = max(times.ends.values())
    found = None
    for least, share in ((6, 0.75), (5, 0.75), (4, 0.75), (3, 0.75), (2, 1.0), (1, 1.0), (0, 1.0)):
        packed, narrowest = _packed(times, least)
        for period in range(room, narrowest - 1, -1):
            spare = period - narrowest
            phases = {p: column + spare * p // _GRAINS for p, column in packed.items()}
            found = _Columns(times, phases, period)
            if found.at(end) + (steps - 1) * found.period <= room:
                break
        if (
            found is not None
            and found.at(end) + (steps - 1) * found.period <= room
            and narrowest <= share * found.period
        ):
            return found
    assert found is not None, "the last width tried is 0"
    return found


def _packed(times: Timetable, least: int) -> tuple[dict[int, int], int]:
    """The leftmost columns of all phases that give every op this width; and the period's."""
    ends = {op: _phase(us, times.period_us) for op, us in times.ends.items()}
    starts = {op: _phase(us, times.period_us) for op, us in times.starts.items()}
    order = sorted({phase for _, phase in (*starts.values(), *ends.values())})
    spans = [(starts[op][1], ends[op][1], ends[op][0] - starts[op][0]) for op in starts]
    spans = [each for each in spans if each[0] != each[1] or each[2]]  # no grain of a period long
    period = 0
    while True:
        column = dict.fromkeys(order, 0)
        for _ in range(len(order) + 1):
            before = dict(column)
            for early, late in pairwise(order):
                column[late] = max(column[late], column[early])
            for start, stop, turns in spans:
                column[stop] = max(column[stop], column[start] + least - turns * period)
            if column == before and column[order[-1]] <= period + column[order[0]]:
                return column, period
        period += 1


def _lane_lines(plan: Plan, steps: int, width: int, color: bool) -> list[str]:
    times = timetable(plan)
    margin = min(max([len(actor) for actor in plan.actors] + [6]) + 1, width // 4)
    columns = _columns(times, steps, width - margin)
    letters = _letters(plan)
    lines, spelled = [], set()
    for actor, program in plan.actors.items():
        blocks = sorted(
            (*columns.of(op, step), step, op) for op, _ in program for step in range(steps)
        )
        drawn, at = [], 0
        for start, end, step, op in blocks:
            start, end = max(start, at), min(end, width - margin)
            if end <= start:
                spelled.add(op)
                continue
            text, whole = _block_text(_short(op), letters[op], step, end - start)
            if not whole:
                spelled.add(op)
            drawn.append(" " * (start - at) + _painted(text, step, color))
            at = end
        lines.append(clip(actor, margin - 1).ljust(margin) + "".join(drawn))
    lines += _wait_marks(plan, columns, steps, margin, width)
    lines.append(_axis(columns, steps, margin, width))
    if columns.stretched:
        lines.append(
            " " * margin + "(stretched where ops would be too short to see)"[: width - margin]
        )
    key = [f"{letter} {op}" for op, letter in letters.items() if op in spelled]
    return [*lines, *_flow("key", key, width)]


_MARKED = 8  # waits that have a line below the lanes; more of them would say less


def _wait_marks(plan: Plan, columns: _Columns, steps: int, margin: int, width: int) -> list[str]:
    """For each wait a line with `└─→` from the end of its source to the start of its target."""
    lines = []
    for number, (_, waits) in enumerate(folded_waits(plan)[:_MARKED], start=1):
        line = clip(f"wait {number}", margin - 1).ljust(margin)
        for step, wait in ((step, wait) for step in range(steps) for wait in waits):
            if not 0 <= step + wait.distance < steps:
                continue
            start = margin + columns.of(wait.source, step)[1] - 1
            end = margin + columns.of(wait.target, step + wait.distance)[0]
            if len(line) <= start and end < width:
                arrow = "└" + "─" * (end - start - 1) + "→" if end > start else "↓"
                line = line.ljust(start) + arrow
        lines.append(line)
    return lines


def _letters(plan: Plan) -> dict[str, str]:
    """A letter for each op, for where its name has no room."""
    ops = plan.graph.vertices
    names = set(map(_short, ops))
    return dict(zip(ops, (each for each in _symbols() if each not in names), strict=False))


def _short(op: str) -> str:
    """Its name in a lane, which says which side it is of."""
    return op.replace(".host", "").replace(".device", "")


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


def _axis(columns: _Columns, steps: int, margin: int, width: int) -> str:
    """Where each step begins, in µs."""
    line, times = "µs".ljust(margin), columns.times
    first = min(times.starts, key=lambda op: times.starts[op])
    for step in range(steps):
        label = f"╵{times.starts[first] + step * times.told_us:,.0f}"
        place = margin + columns.at(times.starts[first]) + step * columns.period
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
    for number, (wait, waits) in enumerate(folded_waits(plan), start=1):
        lines += _fit(
            [
                f"{number}  {wait.source} → {wait.target}",
                f"step{wait.distance:+d}",
                *([f"{len(waits)} times"] if len(waits) > 1 else []),
                protected(wait),
                f"[{across(plan, waits[0])}, event {wait.source}]",
            ],
            width,
        )
    return lines


def _meeting_lines(plan: Plan, width: int) -> list[str]:
    """Where ranks meet, and on which communicator."""
    found: dict[str, str] = {}
    for node in plan.graph.nodes:
        if (comm := node.comm) is not None:
            ends = " → ".join(map(str, comm.members))
            who = f"rank {ends}, capacity {comm.capacity}"
            if comm.kind == "collective":
                who = f"ranks {', '.join(map(str, comm.members))}"
            found[comm.name] = f"{comm.name} ({who}; {comm.communicator})"
    return _flow("meet", list(found.values()), width, gap=" · ") if found else []


def _slot_lines(plan: Plan, width: int) -> list[str]:
    shown = [
        f"{name} {'fresh' if copies is None else copies}"
        for name, copies in plan.declared_slots.items()
    ]
    return _flow("slots", shown, width)


def period_lines(plan: Plan, width: int) -> list[str]:
    """The period, where its costs come from, the cycle that sets it, and the notes."""
    lines = [f"period  {a_step(plan)}"]
    lines += _flow("costs", plan.costs_from.split(), width, gap=" ")
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
