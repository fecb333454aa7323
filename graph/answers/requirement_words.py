"""A requirement in plain words: who touches what, and what goes wrong if nobody orders it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from ..plan import Edge, Plan
from ..verifier.words import counted, later


def needed_words(plan: Plan, edge: Edge) -> str:
    """Who writes what and who reads which version, on which actors.

    A requirement `u → v, d` is about u of step i and v of step i + d.
    """
    first, then = _placed(edge.source, edge.from_stream, 0), _then(edge)
    name = edge.value
    if edge.hazard == "LAUNCH":
        return f"{first} launches before {then} does."
    if edge.hazard == "BOUND":
        ahead = f"at most {counted(edge.distance, 'step')} ahead of"
        return f"{edge.target} on {edge.to_stream} is {ahead} {edge.source} on {edge.from_stream}."
    if edge.hazard == "LEASE":
        users = _users(plan, edge)
        return (
            f"{first} touches a key of {name} for {users[0]}; {then} touches it for {users[1]}, "
            "who gets it next."
        )
    if name in plan.graph.states:
        verbs = {"R": f"reads {name}", "W": f"changes {name} in place"}
        return (
            f"{first} {verbs[edge.hazard[2]]}; {then} {verbs[edge.hazard[0]]}, "
            "and comes later in the serial program."
        )
    if edge.hazard == "RAW":
        back = f" ({name}@-{edge.carry})" if edge.carry else ""
        return f"{first} writes {name}; {then} reads this version{back}."
    shared = f"the slot of {_version(-edge.carry)} ({counted(plan.slots[name] or 0, 'slot')})"
    if edge.hazard == "WAR":
        what = f"{name}@-{edge.carry}, {_version(-edge.carry)}" if edge.carry else name
        return f"{first} reads {what}; {then} writes {_version(edge.distance)} to {shared}."
    return f"{first} writes {name}; {then} writes {_version(edge.distance)} to {shared}."


def broken_words(plan: Plan, edge: Edge) -> str:
    """What could happen if nothing ordered the two."""
    first, then = f"{edge.source} of step i", f"{edge.target} of step {later(edge.distance)}"
    name = edge.value
    if edge.hazard == "LAUNCH":
        return _launch_broken(plan, edge)
    if edge.hazard == "BOUND":
        return (
            f"nothing would limit how far {edge.target} runs ahead of {edge.source}, nor how many "
            "versions wait to be read."
        )
    if edge.hazard == "LEASE":
        users = _users(plan, edge)
        return (
            f"{then} could touch a key of {name} while {first} still does: to pass from "
            f"{users[0]} to {users[1]}, it would take more steps, or no number would be enough."
        )
    if name in plan.graph.states:
        return {
            "RAW": f"{then} could read {name} without what {first} changes in it.",
            "WAR": f"{then} could change {name} while {first} still reads it.",
            "WAW": f"{then} could change {name} before or while {first} does.",
        }[edge.hazard]
    if edge.hazard == "RAW":
        copies = plan.slots.get(name)
        found = (
            "there would be nothing yet"
            if copies is None
            else f"its slot would still hold {_version(-copies)}"
        )
        return f"{then} could read {name} of step i before {edge.source} has written it: {found}."
    if edge.hazard == "WAR":
        return (
            f"{then} could overwrite {name} of step {later(-edge.carry)} while {first} "
            f"still reads it, which would then see data of step {later(edge.distance)}."
        )
    return f"both could write one slot of {name} at once, and {_version(0)} could come out on top."


def title(edge: Edge) -> str:
    """`RAW drafts@-1`, or `launch order`."""
    if edge.hazard in ("LAUNCH", "BOUND"):
        return {"LAUNCH": "launch order", "BOUND": "bound"}[edge.hazard]
    carried = f"@-{edge.carry}" if edge.carry else ""
    return f"{edge.hazard} {edge.value}{carried}"


def merged(edges: Iterable[Edge], states: Container[str]) -> list[tuple[str, Edge]]:
    """Each requirement with its title; those of two accesses of a state as one.

    Two ops that both read and change a state have up to three: `WAR/RAW/WAW matchers`.
    """
    found: dict[tuple[str, ...], list[Edge]] = {}
    for edge in edges:
        hazard = "" if edge.value in states else f"{edge.hazard}@{edge.carry}"
        key = (edge.value, edge.source, edge.target, str(edge.distance), hazard)
        found.setdefault(key, []).append(edge)
    return [
        (title(replace(same[0], hazard="/".join(edge.hazard for edge in same))), same[0])
        for same in found.values()
    ]


def _launch_broken(plan: Plan, edge: Edge) -> str:
    nodes = [plan.graph.vertices[op].node for op in (edge.source, edge.target)]
    streams = [node.stream for node in nodes]
    then = f"{edge.target} of step {later(edge.distance)}"
    if streams[0] == streams[1]:
        return (
            f"{then} could launch first, and {streams[0]}, which runs what it is given in "
            f"the order of the launches, would run {nodes[1].name} before {nodes[0].name}."
        )
    return (
        f"{then} could launch first, and {streams[1]} would wait for an event of "
        f"{streams[0]} that is not recorded yet: a stream takes that for nothing to wait for."
    )


def _users(plan: Plan, edge: Edge) -> list[str]:
    """For whom the two ops touch a keyed state."""
    return [plan.graph.vertices[op].op.class_of(edge.value) for op in (edge.source, edge.target)]


def _placed(op: str, actor: str, distance: int) -> str:
    return f"{op} of step {later(distance)} on {actor}"


def _then(edge: Edge) -> str:
    return _placed(edge.target, edge.to_stream, edge.distance)


def _version(step: int) -> str:
    return f"version {later(step)}"
