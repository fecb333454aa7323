"""Drawings of plans and graphs as text: terminal lanes, DOT, Mermaid.

They read the plan that the executor runs; the planner has no drawing hooks. The same plan gives
the same text on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_letters, digits

from .plan import Edge, Plan, Wait
from .step_graph import StepGraph

_STEP_COLOURS = ("36", "33", "35", "32", "34", "31")  # ANSI: cyan, yellow, magenta, green, …


# --- the steady state -------------------------------------------------------------------------


@dataclass(frozen=True)
class Timetable:
    """When each op of step 0 starts and ends in steady state; step i is i periods later."""

    starts: Mapping[str, float]
    ends: Mapping[str, float]
    period_us: float


def timetable(plan: Plan) -> Timetable:
    """Each op as early as its program, launch and waits allow, at the least period they allow."""
    ops = list(plan.graph.vertices)
    most = max(plan.costs.values(), default=0.0) or 1.0
    cost = {op: plan.costs.get(op, 0.0) or most / 100 for op in ops}  # all ops can be seen
    arcs = list(_delays(plan, cost))
    period, starts, cycle = plan.period_us, dict.fromkeys(ops, 0.0), True
    while cycle:  # Newton's iteration: a cycle that asks for more time sets the next period
        starts, ratio = _relax(ops, arcs, period)
        cycle, period = ratio > period, max(ratio, period)
    ends = {op: starts[op] + cost[op] for op in ops}
    for name, vertex in plan.graph.vertices.items():
        if vertex.launch is not None:
            ends[name] = max(ends[name], ends[vertex.launch])
    return Timetable(starts, ends, period)


def _delays(plan: Plan, cost: Mapping[str, float]) -> Iterator[tuple[str, str, int, float]]:
    """(u, v, d, delay): v of step i + d starts at least `delay` after u of step i starts."""
    vertices = plan.graph.vertices
    for u, v, d, kind in _arcs(plan):
        latency = vertices[v].node.launch_latency_us if kind == "launch" else None
        yield u, v, d, cost[u] if latency is None else latency
        if kind != "launch" and (launch := vertices[u].launch) is not None:
            yield launch, v, d, cost[launch]  # a device op does not end before its launch


def _arcs(plan: Plan) -> Iterator[tuple[str, str, int, str]]:
    """The orderings that running the plan gives: (u, v, distance, kind)."""
    for program in plan.actors.values():
        for (u, at), (v, then) in pairwise([*program, (program[0][0], program[0][1] - 1)]):
            yield u, v, at - then, "order"
    for node in plan.graph.nodes:
        if node.device:
            yield node.op_names("host")[-1], node.op_names("device")[0], 0, "launch"
    for wait in plan.waits:
        yield wait.source, wait.target, wait.distance, "wait"


def _relax(
    ops: Sequence[str], arcs: Sequence[tuple[str, str, int, float]], period: float
) -> tuple[dict[str, float], float]:
    """Earliest starts at this period; and the ratio of a cycle that needs a longer one, or 0."""
    starts = dict.fromkeys(ops, 0.0)
    came: dict[str, tuple[str, int, float]] = {}
    for _ in range(len(ops) + 1):
        last = None
        for u, v, d, delay in arcs:
            at = starts[u] + delay - d * period
            if at > starts[v] + 1e-6:
                starts[v], came[v], last = at, (u, d, delay), v
        if last is None:
            return starts, 0.0
    assert last is not None, "otherwise the loop returned"
    for _ in ops:  # walk back into the cycle
        last = came[last][0]
    total, distance, here = 0.0, 0, last
    while True:
        here, d, delay = came[here]
        total, distance = total + delay, distance + d
        if here == last:
            break
    return starts, total / distance if distance > 0 else 0.0


# --- lanes ------------------------------------------------------------------------------------


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
        _count(len(plan.actors), "actor"),
        _count(len(plan.waits), "wait"),
        _count(plan.requirements, "requirement"),
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
        lines.append(_clip(actor, margin - 1).ljust(margin) + "".join(drawn))
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
                _protected(wait),
                f"[{_across(plan, wait)}, event {wait.source}]",
            ],
            width,
        )
    return lines


def _protected(wait: Wait) -> str:
    """`RAW sampled, WAR staging`, or what else the wait is for."""
    names = dict.fromkeys(f"{p.hazard} {p.value}".strip() for p in wait.protects)
    shown = list(names)[:3]
    more = [f"and {len(names) - 3} more"] if len(names) > 3 else []
    return ", ".join([*shown, *more]) or "launch order"


def _across(plan: Plan, wait: Wait) -> str:
    actors = [plan.graph.vertices[op].actor for op in (wait.source, wait.target)]
    return " ⇒ ".join(actors)


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
                f"{edge.hazard} {_carried(edge)}",
                f"{edge.source} → {edge.target}",
                f"step{edge.distance:+d}",
                f"{edge.from_stream} ⇒ {edge.to_stream}",
                f"by {edge.by}" + (f", event {edge.event}" if edge.event else ""),
            ],
            width,
        )
    return lines


def _carried(edge: Edge) -> str:
    return f"{edge.value}@-{edge.carry}" if edge.carry else edge.value


def _fit(parts: Iterable[str], width: int) -> list[str]:
    """The parts of one entry on as few lines as they need, broken only between parts."""
    lines, line = [], " "
    for part in (_clip(part, width - 6) for part in parts):
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
    title = _clip(title, width // 2)
    indent = max(len(title) + 1, indent)
    lines, line = [], title.ljust(indent)
    for item in (_clip(item, width - indent - len(gap)) for item in items):
        lead = "" if len(line) == indent else gap
        if len(line) + len(lead) + len(item) > width:
            lines.append(line.rstrip())
            line, lead = " " * indent, ""
        line += lead + item
    return [*lines, line]


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- DOT and Mermaid --------------------------------------------------------------------------


def dot(plan: Plan) -> str:
    """The plan for Graphviz: a cluster for each actor, waits bold, met requirements ghosted."""
    lines = [
        f"digraph {_quoted(plan.graph.name)} {{",
        "  rankdir=LR; compound=true;",
        '  node [shape=box, style=rounded, fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    for index, (actor, program) in enumerate(plan.actors.items()):
        lines += [f"  subgraph cluster_{index} {{", f"    label={_quoted(actor)};"]
        lines += [f"    {_quoted(op)} [label={_quoted(_placed(op, at))}];" for op, at in program]
        lines.append("  }")
    for u, v, d, kind in _arcs(plan):
        if kind == "order" and u != v:
            lines.append(_dot_arc(u, v, "color=gray50", _later(d)))
        elif kind == "launch":
            lines.append(_dot_arc(u, v, "color=gray50, style=dashed", "launch"))
    for wait in plan.waits:
        label = " ".join(filter(None, [_protected(wait), _later(wait.distance)]))
        lines.append(_dot_arc(wait.source, wait.target, "color=firebrick, penwidth=2.5", label))
    for (source, target, distance), edges in _ghosts(plan).items():
        label = ", ".join(dict.fromkeys(f"{edge.hazard} {_carried(edge)}" for edge in edges))
        style = "color=gray80, fontcolor=gray60, style=dotted, constraint=false"
        lines.append(_dot_arc(source, target, style, f"{label} {_later(distance)}".strip()))
    return "\n".join([*lines, "}"]) + "\n"


def dot_graph(graph: StepGraph) -> str:
    """The declared data flow for Graphviz, before anything is ordered: who reads what from whom."""
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style=rounded, fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    actors: dict[str, list[str]] = {}
    for op in graph.vertices.values():
        actors.setdefault(op.actor, []).append(op.name)
    for index, (actor, ops) in enumerate(actors.items()):
        lines += [f"  subgraph cluster_{index} {{", f"    label={_quoted(actor)};"]
        lines += [f"    {_quoted(op)};" for op in ops]
        lines.append("  }")
    for state in graph.states:
        lines.append(f"  {_quoted('state ' + state)} [shape=cylinder, label={_quoted(state)}];")
    writers = {name: op.name for op in graph.vertices.values() for name in op.op.writes}
    for name, value in graph.values.items():
        if value.external:
            lines.append(f"  {_quoted('value ' + name)} [shape=ellipse, label={_quoted(name)}];")
    for op in graph.vertices.values():
        if op.launch is not None:
            lines.append(_dot_arc(op.launch, op.name, "color=gray50, style=dashed", "launch"))
        for read in op.op.reads:
            if read.name in graph.states:
                lines.append(_dot_arc("state " + read.name, op.name, "color=gray50", ""))
                continue
            source = writers.get(read.name, "value " + read.name)
            style = "style=dashed, constraint=false" if read.carry else "color=black"
            lines.append(_dot_arc(source, op.name, style, str(read)))
        for name in op.op.writes:
            if name in graph.states:
                lines.append(_dot_arc(op.name, "state " + name, "color=gray50", ""))
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart: waits thick, launches dashed, carries labelled."""
    ids = {op: f"op{index}" for index, op in enumerate(plan.graph.vertices)}
    lines = ["flowchart LR"]
    for index, (actor, program) in enumerate(plan.actors.items()):
        lines.append(f'  subgraph actor{index}["{_mermaid(actor)}"]')
        lines += [f'    {ids[op]}["{_mermaid(_placed(op, at))}"]' for op, at in program]
        lines.append("  end")
    for u, v, d, kind in _arcs(plan):
        if kind == "order" and u != v:
            lines.append(_mermaid_arc(ids[u], "-->", ids[v], _later(d)))
        elif kind == "launch":
            lines.append(_mermaid_arc(ids[u], "-.->", ids[v], "launch"))
    for wait in plan.waits:
        label = " ".join(filter(None, [_protected(wait), _later(wait.distance)]))
        lines.append(_mermaid_arc(ids[wait.source], "==>", ids[wait.target], label))
    return "\n".join(lines) + "\n"


def _ghosts(plan: Plan) -> dict[tuple[str, str, int], list[Edge]]:
    """Requirements between two ops that need no wait of their own."""
    waits = {(wait.source, wait.target, wait.distance) for wait in plan.waits}
    found: dict[tuple[str, str, int], list[Edge]] = {}
    for edge in plan.edges:
        key = (edge.source, edge.target, edge.distance)
        if edge.source != edge.target and key not in waits:
            found.setdefault(key, []).append(edge)
    return found


def _placed(op: str, offset: int) -> str:
    """The op, and which step it acts on in iteration t where that is not t."""
    return op if offset == 0 else f"{op} (t{-offset:+d})"


def _later(distance: int) -> str:
    """`step+1`; nothing for the same step."""
    return f"step{distance:+d}" if distance else ""


def _dot_arc(source: str, target: str, style: str, label: str) -> str:
    shown = f", label={_quoted(label)}" if label else ""
    return f"  {_quoted(source)} -> {_quoted(target)} [{style}{shown}];"


def _mermaid_arc(source: str, arrow: str, target: str, label: str) -> str:
    shown = f'|"{_mermaid(label)}"|' if label else ""
    return f"  {source} {arrow}{shown} {target}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _mermaid(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
