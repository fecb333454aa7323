"""`stepweave graph why` and `why-not`: which waits there are between two ops, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from ..configs.errors import ConfigError, Mark
from ..graph.answers.between import Between, Order, between, ops_named
from ..graph.answers.explain import Reason, WaitExplanation, path_words
from ..graph.answers.leases import explain_lease
from ..graph.answers.requirement_words import merged
from ..graph.errors import GraphError
from ..graph.plan import Plan
from ..graph.verifier.words import ago, counted, instant, later
from .wrapping import columns, paragraph, path

if TYPE_CHECKING:
    from .graph import WhyNotOptions, WhyOptions


def why(asked: WhyOptions) -> None:
    """Print every wait between two nodes or ops with what it is for."""
    plan = asked.plan()
    if ":" in asked.first and ":" in asked.then:
        why_lease(asked, plan)
        return
    found = _between(asked, plan)
    if asked.json:
        print(json.dumps({"config": asked.config, **found.to_json()}))
    else:
        print("\n".join(_why_lines(plan, found, (asked.first, asked.then), columns())))


def why_lease(asked: WhyOptions, plan: Plan) -> None:
    """Print after how many steps a key passes between two classes of users, and why no sooner."""
    (state, source), (other, target) = (name.rsplit(":", 1) for name in (asked.first, asked.then))
    try:
        if other != state:
            raise GraphError(
                f"a key of {state!r} stays one of it: say {asked.first} {state}:{target}",
                code="SW-UNKNOWN-NAME",
            )
        found = explain_lease(plan, state, source, target)
    except GraphError as error:
        raise ConfigError.at(Mark(asked.config), error.message, error.code) from error
    if asked.json:
        print(json.dumps({"config": asked.config, **found.to_json()}))
        return
    width = columns()
    lines = paragraph(found.headline, width)
    for number, line in enumerate(found.lines()[1:]):
        lines += paragraph(line, width, 2, ("why       ", "sooner    ", "cycle     ")[number])
    hops = {(u, v) for (u, _), (v, _) in pairwise(found.path)}
    for number, wait in enumerate(plan.waits):
        if (wait.source, wait.target) in hops:
            said = f"wait {number + 1}, {wait.target} for {wait.source} of {ago(wait.distance)}"
            lines += paragraph(said, width, 2, "needs     ")
    print("\n".join(lines))


def why_not(asked: WhyNotOptions) -> None:
    """Print what orders two nodes or ops already, or that nothing does."""
    plan = asked.plan()
    found, distance = _between(asked, plan), asked.distance
    if asked.json:
        at = {} if distance is None else {"distance": distance, "asked": _asked(found, distance)}
        print(json.dumps({"config": asked.config, **found.to_json(), **at}))
    else:
        names = (asked.first, asked.then)
        print("\n".join(_why_not_lines(plan, found, names, distance, columns())))


def _between(asked: WhyOptions | WhyNotOptions, plan: Plan) -> Between:
    return between(plan, *(ops_of(asked.config, plan, name) for name in (asked.first, asked.then)))


def ops_of(config: str, plan: Plan, name: str) -> tuple[str, ...]:
    """The ops of a node or op that was named on the command line."""
    try:
        return ops_named(plan, name)
    except GraphError as error:
        raise ConfigError.at(Mark(config), error.message, error.code) from error


def _asked(found: Between, distance: int) -> list[dict[str, str]]:
    return [{"from": o.first, "to": o.then, "order": o.at(distance)} for o in found.orders]


# --- why ----------------------------------------------------------------------------------------


def _why_lines(plan: Plan, found: Between, names: tuple[str, str], width: int) -> list[str]:
    first, then = names
    if not found.waits and not found.back_waits:
        return _why_not_lines(plan, found, names, None, width)
    lines = []
    if not found.waits:
        lines += paragraph(
            f"{then} waits for nothing of {first}. The wait is the other way round:", width
        )
        lines.append("")
    blocks = [wait_lines(plan, wait, width) for wait in (*found.waits, *found.back_waits)]
    for number, block in enumerate(blocks):
        if number and number == len(found.waits):
            lines += ["", "and the other way round:"]
        lines += ([""] if number else []) + block
    return lines


def wait_lines(plan: Plan, wait: WaitExplanation, width: int) -> list[str]:
    """One wait: what realizes it, what it protects, what else it orders, and its cost."""
    lines = paragraph(f"Wait {wait.number + 1} of {len(plan.waits)}: {wait.headline}", width)
    lines += paragraph(wait.realized, width, 2, "how       ")
    count = counted(len(wait.protects), "requirement")
    broken = "breaks" if len(wait.protects) == 1 else "break"
    lines += paragraph(f"{count} that {broken} without it:", width, 2, "protects  ")
    for reason in wait.protects:
        lines += ["", *_protected_lines(wait, reason, width)]
    lines.append("")
    lines += _also_lines(plan, wait, width)
    lines += paragraph(f"{wait.cost} Costs: {plan.costs_from}.", width, 2, "costs     ")
    return lines


def _protected_lines(wait: WaitExplanation, reason: Reason, width: int) -> list[str]:
    edge = reason.edge
    lines = paragraph(f"{reason.title}: {edge.source} → {edge.target}", width, 4)
    lines += paragraph(reason.needed, width, 6)
    lines += paragraph(f"Without the wait, {reason.without}", width, 6)
    if (edge.source, edge.target) != (wait.wait.source, wait.wait.target):
        lines += path(reason.ordered_by, width, 6, "by ")
    return lines


def _also_lines(plan: Plan, wait: WaitExplanation, width: int) -> list[str]:
    """What another path orders anyway; what one program or launch orders is only counted."""
    plain = len(wait.also) - len(wait.incidental)
    if not wait.also:
        return paragraph("nothing else", width, 2, "also      ")
    lines = []
    if wait.incidental:
        text = f"{counted(len(wait.incidental), 'requirement')} that another path orders anyway:"
        lines += paragraph(text, width, 2, "also      ")
    for titles, reason in _merged(plan, wait.incidental):
        edge = reason.edge
        lines += paragraph(f"{titles}: {edge.source} → {edge.target}", width, 4)
        lines += path(reason.ordered_by, width, 6, "by ")
    if plain:
        label = "          " if lines else "also      "
        text = f"{counted(plain, 'requirement')} that one program or launch orders anyway"
        lines += paragraph(("and " if lines else "") + text, width, 2, label)
    return lines


def _merged(plan: Plan, reasons: Iterable[Reason]) -> list[tuple[str, Reason]]:
    """The hazards of one pair of accesses to a state together: they have one path."""
    by_edge = {reason.edge: reason for reason in reasons}
    return [(titles, by_edge[edge]) for titles, edge in merged(by_edge, plan.graph.states)]


# --- why not --------------------------------------------------------------------------------------


def _why_not_lines(
    plan: Plan,
    found: Between,
    names: tuple[str, str],
    distance: int | None,
    width: int,
) -> list[str]:
    first, then = names
    lines = []
    waits = [each.wait for each in (*found.waits, *found.back_waits)]
    if waits:
        for wait in waits:
            lines += paragraph(
                f"There is a wait: {wait.target} waits for {wait.source} of {ago(wait.distance)} "
                f"(stepweave graph why … {wait.source} {wait.target}).",
                width,
            )
    else:
        lines += paragraph(f"There is no wait between {first} and {then}.", width)
    reasons = [*found.requirements, *found.back_requirements]
    if reasons:
        are = "is 1 requirement" if len(reasons) == 1 else f"are {len(reasons)} requirements"
        text = f"There {are} between them, ordered already:" if not waits else f"There {are}:"
        lines += paragraph(text, width)
    else:
        lines += paragraph(
            "There is no requirement between them either: neither touches what the other changes.",
            width,
        )
    for titles, reason in _merged(plan, reasons):
        lines += ["", *_met_lines(titles, reason, width)]
    lines.append("")
    for each in found.orders:
        lines += order_lines(each, distance, width)
    return lines


def _met_lines(titles: str, reason: Reason, width: int) -> list[str]:
    edge = reason.edge
    needed = instant(edge.source, edge.target, edge.distance)
    lines = paragraph(f"{titles}: {needed}", width, 2)
    lines += paragraph(_needed(titles, reason), width, 4)
    return lines + path(reason.ordered_by, width, 4, f"by {edge.by}: ")


def _needed(titles: str, reason: Reason) -> str:
    """Who touches what; of several hazards what they have in common."""
    edge = reason.edge
    if titles == reason.title:
        return reason.needed
    ops = f"{edge.source} on {edge.from_stream} and {edge.target} on {edge.to_stream}"
    return f"{ops} both touch {edge.value}, one after the other in the serial program."


def order_lines(order: Order, distance: int | None, width: int) -> list[str]:
    """Whether one op is before the other: at one distance, or at each."""
    if distance is None:
        lines = paragraph(order.words(), width, 2)
    else:
        beside = f"{order.then} of step {later(distance)}"
        said = {
            "before": f"{order.first} of step i is done before {beside} starts",
            "after": f"{order.first} of step i starts after {beside} is done",
            "overlap": f"{order.first} of step i and {beside} may overlap: nothing orders them",
        }
        lines = paragraph(said[order.at(distance)], width, 2)
    shown = order.path and (distance is None or order.at(distance) == "before")
    return lines + (path(path_words(order.first, order.legs), width, 4, "by ") if shown else [])
