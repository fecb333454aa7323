"""Two plans side by side as one HTML file: both in time, what changed marked, every change listed.

There is no script in it; it needs no network and can be printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from string import Template

from ..graph.answers.difference import Difference, Names
from ..graph.answers.switches import needed_for
from ..graph.plan import Edge, Placed, Plan, Wait
from ..graph.switch import Switch
from .drawn import critical_cycle, summary
from .html import asset, palette, policy
from .svg_lanes import lanes_svg
from .svg_switch import switch_svg
from .words import across, count, later, slots_text

_WIDTH = 900  # of each drawing: two fit beside each other on a screen


def diff_page(
    found: Difference, before: str, after: str, *, steps: int = 2, switch: Switch | None = None
) -> str:
    """One self-contained HTML file. `before` and `after` name the two plans.

    `switch`: how a running engine goes from the one to the other, to be drawn too.
    """
    changed = _changed_waits(found)
    return Template(asset("diff.html")).substitute(
        policy=policy(),
        style=asset("diff.css") + palette(),
        before=escape(before),
        after=escape(after),
        verdict=escape(_verdict(found)),
        digest_before=found.before.digest[:12],
        digest_after=found.after.digest[:12],
        lanes_before=_lanes(found.before, "before", steps, changed[0], set(found.ops.removed)),
        lanes_after=_lanes(found.after, "after", steps, changed[1], set(found.ops.added)),
        switch="" if switch is None else _switch(switch),
        sections="\n".join(_sections(found)),
    )


def _verdict(found: Difference) -> str:
    if found.identical:
        return "Identical: the same plan, and the same costs."
    numbers = [
        (len(found.ops.removed) + len(found.ops.added), "op"),
        (len(found.data.removed) + len(found.data.added), "value"),
        (len(found.waits_removed) + len(found.waits_added) + len(found.waits_moved), "wait"),
        (len(found.slots), "slot count"),
        (len(found.leases), "lease"),
        (len(found.programs), "actor order"),
        (len(found.requirements_removed) + len(found.requirements_added), "requirement"),
        (len(found.costs), "cost"),
    ]
    changes = ", ".join(count(number, noun) for number, noun in numbers if number)
    return f"Changed: {changes or 'only how requirements are met'}."


# --- the drawings -----------------------------------------------------------------------------


def _changed_waits(found: Difference) -> tuple[set[int], set[int]]:
    """Indices of the waits that only one plan has, or that have another distance, on each side."""
    moved = {(each.source, each.target) for each in found.waits_moved}

    def on(plan: Plan, own: Iterable[Wait]) -> set[int]:
        alone = set(own)
        return {
            index
            for index, wait in enumerate(plan.waits)
            if wait in alone or (wait.source, wait.target) in moved
        }

    return on(found.before, found.waits_removed), on(found.after, found.waits_added)


def _lanes(plan: Plan, side: str, steps: int, waits: set[int], ops: set[str]) -> str:
    """The lanes with ids of this side's own, and the class `changed` on what changed."""
    drawing = lanes_svg(plan, steps=steps, title=f"{plan.graph.name}, {side}", width=_WIDTH)
    drawing = re.sub(r'(id="|url\(#|aria-labelledby=")', rf"\1{side}-", drawing)

    def marked(group: re.Match[str]) -> str:
        kind, key, name = group.groups()
        known = waits if kind == "wait" else ops
        changed = (int(name) if kind == "wait" else name) in known
        return f'class="{kind} changed" {key}="{name}"' if changed else group.group()

    return re.sub(r'class="(wait|op)" (data-wait|data-op)="([^"]*)"', marked, drawing)


def _switch(switch: Switch) -> str:
    rows = (
        [escape(str(wait.target)), escape(str(wait.source)), escape(needed_for(wait.protects))]
        for wait in switch.waits
    )
    drawing = f'<div class="scroll">\n{switch_svg(switch)}</div>'
    waits = _table("Waits that take place once", ["op", "waits for", "protects"], rows)
    return f'<figure id="switch"><figcaption><b>switch</b></figcaption>{drawing}</figure>\n{waits}'


# --- the lists --------------------------------------------------------------------------------


def _sections(found: Difference) -> Iterator[str]:
    yield _table("Speed", ["", "before", "after"], _speed(found))
    if found.identical:
        return
    yield _table("Ops", ["change"], _names(found.ops))
    yield _table("Values and states", ["change"], _names(found.data))
    yield _table("Waits", ["change", "across", "protects"], _waits(found))
    slots = ([escape(n), slots_text(a), slots_text(b)] for n, (a, b) in found.slots.items())
    yield _table("Slots", ["value", "before", "after"], slots)
    yield _table("Keys", ["lease", "before", "after"], _leases(found))
    yield _table("Order of ops", ["actor", "before", "after"], _programs(found))
    yield _table("Requirements", ["change", "before", "after", "met by"], _requirements(found))
    costs = ([escape(op), f"{a:,.6g} µs", f"{b:,.6g} µs"] for op, (a, b) in found.costs.items())
    yield _table("Costs", ["op", "before", "after"], costs)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already. Nothing where there are no rows."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n" for cells in rows)
    if not body:
        return ""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    name = title.lower().replace(" ", "-")
    return (
        f'<section id="{name}"><h2>{escape(title)}</h2><div class="scroll"><table><thead><tr>{head}'
        f"</tr></thead><tbody>\n{body}</tbody></table></div></section>"
    )


def _speed(found: Difference) -> Iterator[list[str]]:
    plans = (found.before, found.after)
    yield ["period", *(f"{plan.step_us:,.6g} µs a step" for plan in plans)]
    yield ["set by", *(escape(" ".join(critical_cycle(plan)) or "no op") for plan in plans)]
    yield ["summary", *(escape(summary(plan)) for plan in plans)]


def _names(names: Names) -> Iterator[list[str]]:
    yield from ([_gone(name)] for name in names.removed)
    yield from ([_new(name)] for name in names.added)


def _waits(found: Difference) -> Iterator[list[str]]:
    sides = (
        (found.before, found.waits_removed, _gone),
        (found.after, found.waits_added, _new),
    )
    for plan, waits, mark in sides:
        for wait in waits:
            words = f"{wait.target} waits for {wait.source} {later(wait.distance)}".strip()
            names = dict.fromkeys(f"{p.hazard} {p.value}".strip() for p in wait.protects)
            protects = escape(", ".join(names) or "launch order")
            yield [mark(words), escape(across(plan, wait)), protects]
    for moved in found.waits_moved:
        words = f"{moved.target} waits for {moved.source}, distance {moved.before:+d}"
        yield [f"{escape(words)} → {moved.after:+d}", "", ""]


def _leases(found: Difference) -> Iterator[list[str]]:
    for (state, source, target), steps in found.leases.items():
        after = ("none" if each is None else f"after {count(each, 'step')}" for each in steps)
        yield [escape(f"{state}: {source} → {target}"), *after]


def _programs(found: Difference) -> Iterator[list[str]]:
    for actor, (before, after) in found.programs.items():
        yield [escape(actor), _program(before), _program(after)]


def _program(program: Sequence[Placed]) -> str:
    ops = (f"{op} (t{-offset:+d})" if offset else op for op, offset in program)
    return escape(", ".join(ops)) or "(no such actor)"


def _requirements(found: Difference) -> Iterator[list[str]]:
    for edges, mark in ((found.requirements_removed, _gone), (found.requirements_added, _new)):
        yield from (_requirement(edge, mark(_hazard(edge))) for edge in edges)
    for needed in found.distances:
        cells = _requirement(needed.after, escape(_hazard(needed.after)))
        cells[2] += f", step {needed.before.distance:+d} → {needed.after.distance:+d}"
        yield cells
    for needed in (*found.incidental, *found.direct):
        cells = _requirement(needed.after, escape(_hazard(needed.after)))
        cells[3] = f"{needed.before.by} → {needed.after.by}"
        yield cells
    if found.proofs:
        said = f"{count(found.proofs, 'requirement')} met the same way, by other ops in between"
        yield [said, "", "", ""]


def _hazard(edge: Edge) -> str:
    return f"{edge.hazard} {edge.value}".strip()


def _requirement(edge: Edge, change: str) -> list[str]:
    after = f"{edge.target} {later(edge.distance)}".strip()
    return [change, escape(edge.source), escape(after), escape(edge.by)]


def _gone(text: str) -> str:
    return f"<del>{escape(text)}</del>"


def _new(text: str) -> str:
    return f"<ins>{escape(text)}</ins>"
