"""`stepweave graph diff`: what differs between the plans of two configs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graph.answers.difference import Difference, Names, difference
from ..graph.answers.requirement_words import merged
from ..graph.answers.switches import switch_json
from ..graph.answers.whatif import bound_by, speedup
from ..graph.plan import Placed, Wait
from ..graph.planner.switching import switch_plans
from ..graph.verifier.verified import verified_switch
from ..graph.verifier.words import ago, counted, instant, later
from ..views.diff_page import diff_page
from ..views.words import slots_text
from .output import check_writable, save
from .planned import planned
from .reporting import say
from .settings import overrides, pairs, told_at
from .switch_lines import switch_lines
from .wrapping import columns, paragraph, table

if TYPE_CHECKING:
    from .graph import DiffOptions


def diff(asked: DiffOptions) -> int:
    """Print the difference, and write it as a page; with `--exit-code`, 1 if there is one."""
    common = overrides(asked.settings)
    sides = [
        (config, option, pairs(option, own))
        for config, option, own in (
            (asked.before, "--set-x", asked.before_settings),
            (asked.after, "--set-y", asked.after_settings),
        )
    ]
    if asked.html is not None:
        check_writable(asked.html)
    plans = [
        planned(config, {**common, **told_at(option, own)}, costs=asked.costs, rows=asked.rows)
        for config, option, own in sides
    ]
    found = difference(plans[0], plans[1])
    switch = verified_switch(switch_plans(plans[0], plans[1])) if asked.switch else None
    before, after = (
        " ".join([name, *map("=".join, {**common, **own}.items())]) for name, _, own in sides
    )
    if asked.html is not None:
        save(asked.html, diff_page(found, before, after, switch=switch))
        say(f"wrote {asked.html}")
    if asked.json:
        more = {} if switch is None else {"switch": switch_json(switch)}
        print(json.dumps({"before": before, "after": after, **found.to_json(), **more}))
    else:
        lines = _lines(found, before, after, columns())
        lines += [] if switch is None else ["", *switch_lines(switch, columns())]
        print("\n".join(lines))
    return int(asked.exit_code and not found.identical)


def _lines(found: Difference, before: str, after: str, width: int) -> list[str]:
    lines = [*paragraph(before, width, 0, "--- "), *paragraph(after, width, 0, "+++ ")]
    if found.identical:
        return [*lines, "identical: the same plan, and the same costs"]
    return [*lines, "", *difference_lines(found, width)]


def difference_lines(found: Difference, width: int) -> list[str]:
    """What changed, by kind; kinds without a change are left out, but for waits and slots."""
    sections = [
        speed_lines(found, width),
        _name_lines("ops", found.ops, width),
        _name_lines("values and states", found.data, width),
        _wait_lines(found, width),
        _slot_lines(found, width),
        _lease_lines(found, width),
        _program_lines(found, width),
        _requirement_lines(found, width),
        _protection_lines(found, width),
        _cost_lines(found, width),
    ]
    lines: list[str] = []
    for section in filter(None, sections):
        lines += [""] * bool(lines) + section
    return lines


def speed_lines(found: Difference, width: int) -> list[str]:
    """Period and critical cycle, before and after."""
    before, after = found.before, found.after
    if before.step_us == after.step_us:
        lines = [f"period     {before.step_us:,.6g} µs a step, as before"]
    else:
        gain = speedup(before, after)
        lines = [
            f"period     {before.step_us:,.6g} → {after.step_us:,.6g} µs a step "
            f"({gain:.3g}× the steps per second)"
        ]
    cycles = [plan.graph.cycle for plan in (before, after)]
    if max(cycles) > 1:
        length = " → ".join(map(str, dict.fromkeys(cycles)))
        told = f"{length} steps: nodes and values of step k of a cycle are called name#k"
        lines += paragraph(told, width, 0, "cycle      ")
    said = dict.fromkeys((before.costs_from, after.costs_from))
    lines += paragraph(" → ".join(said), width, 0, "costs      ")
    if not found.cycle_changed:
        return [*lines, *paragraph(f"{bound_by(after)}, as before", width, 0, "bound by   ")]
    for sign, plan in (("-", before), ("+", after)):
        lines += paragraph(f"{bound_by(plan)}:", width, 0, f"bound by {sign} ")
        lines += paragraph(cycle_words(plan.critical_cycle), width, 11)
    return lines


def cycle_words(cycle: Sequence[Placed]) -> str:
    """`a → b →(+1) a`."""
    if not cycle:
        return "no op takes time"
    hops = [f"{op} →" if d == 0 else f"{op} →({d:+d})" for op, d in cycle]
    return " ".join([*hops, cycle[0][0]])


def _name_lines(what: str, names: Names, width: int) -> list[str]:
    lines = []
    for sign, some in (("-", names.removed), ("+", names.added)):
        if some:
            lines += paragraph(", ".join(some), width, 2, f"{sign} ")
    return [what, *lines] if lines else []


def _wait_lines(found: Difference, width: int) -> list[str]:
    kept = len(found.before.waits) - len(found.waits_removed) - len(found.waits_moved)
    lines = [f"waits      {len(found.before.waits)} → {len(found.after.waits)}, {kept} unchanged"]
    for sign, waits in (("-", found.waits_removed), ("+", found.waits_added)):
        for wait in waits:
            lines += paragraph(_wait_words(wait), width, 2, f"{sign} ")
    for moved in found.waits_moved:
        now, was = ago(moved.after), ago(moved.before)
        text = f"{moved.target} waits for {moved.source} of {now}, not of {was}"
        lines += paragraph(text, width, 2, "~ ")
    return lines


def _wait_words(wait: Wait) -> str:
    needs = ", ".join(dict.fromkeys(f"{p.hazard} {p.value}".strip() for p in wait.protects))
    return f"{wait.target} waits for {wait.source} of {ago(wait.distance)} ({needs})"


def _slot_lines(found: Difference, width: int) -> list[str]:
    if not found.slots:
        return ["slots      unchanged"]
    rows = [
        (f"~ {name}", f"{slots_text(a)} → {slots_text(b)}") for name, (a, b) in found.slots.items()
    ]
    return ["slots", *table(rows, width)]


def _lease_lines(found: Difference, width: int) -> list[str]:
    rows = []
    for (state, source, target), steps in found.leases.items():
        was, now = ("none" if each is None else f"{each:+d}" for each in steps)
        rows.append((f"~ {state}: {source} → {target}", f"{was} → {now}"))
    return ["keys", *table(rows, width)] if rows else []


def _program_lines(found: Difference, width: int) -> list[str]:
    lines = []
    for actor, (before, after) in found.programs.items():
        lines.append(f"  {actor}")
        for sign, program in (("-", before), ("+", after)):
            ops = ", ".join(op if not at else f"{op}({_iteration(at)})" for op, at in program)
            lines += paragraph(ops or "(no such actor)", width, 4, f"{sign} ")
    return ["order", *lines] if lines else []


def _iteration(offset: int) -> str:
    return f"t{-offset:+d}"


def _requirement_lines(found: Difference, width: int) -> list[str]:
    states = _states(found)
    counts = len(found.before.edges), len(found.after.edges)
    lines = []
    for sign, edges in (("-", found.requirements_removed), ("+", found.requirements_added)):
        for titles, edge in merged(edges, states):
            needed = instant(edge.source, edge.target, edge.distance)
            lines += paragraph(f"{titles}: {needed}, by {edge.by}", width, 2, f"{sign} ")
    was = {each.after: each.before.distance for each in found.distances}
    for titles, edge in merged(was, states):
        lines += paragraph(
            f"{titles}: {instant(edge.source, edge.target, edge.distance)}, "
            f"not {edge.target}({later(was[edge])})",
            width,
            2,
            "~ ",
        )
    if not lines and counts[0] == counts[1]:
        return []
    return [f"requirements  {counts[0]} → {counts[1]}", *lines]


def _states(found: Difference) -> set[str]:
    return {*found.before.graph.states, *found.after.graph.states}


def _protection_lines(found: Difference, width: int) -> list[str]:
    states = _states(found)
    lines = []
    for changed, said in (
        (found.incidental, "now only by a path, before by {0}"),
        (found.direct, "now by {1}, before only by a path"),
    ):
        ways = {each.after: (each.before.by, each.after.by) for each in changed}
        for titles, edge in merged(ways, states):
            text = f"{titles}: {edge.source} → {edge.target}, {said.format(*ways[edge])}"
            lines += paragraph(text, width, 2, "~ ")
    if found.proofs:
        text = f"{counted(found.proofs, 'requirement')} met the same way, by other ops in between"
        lines += paragraph(text, width, 2, "~ ")
    return ["protection", *lines] if lines else []


def _cost_lines(found: Difference, width: int) -> list[str]:
    rows = [
        (f"~ {op}", f"{before:,.6g} → {after:,.6g} µs")
        for op, (before, after) in found.costs.items()
    ]
    return ["costs", *table(rows, width)] if rows else []
