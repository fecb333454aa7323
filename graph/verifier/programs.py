"""The programs of a plan by themselves: each op once, in its place, and waits between ops."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ..plan import Plan
from ..violation import Violation
from .reports import access_of
from .words import ago


def wrong_programs(plan: Plan) -> list[Violation]:
    """What is wrong with the actors, the numbers of slots and the ends of waits. Raises nothing."""
    return [*_actors(plan), *_parted(plan), *_slots(plan), *_wait_ends(plan)]


def _actors(plan: Plan) -> Iterator[Violation]:
    """Each op once, on its actor; device ops beside their launch; phases in their order."""
    ops = plan.graph.vertices
    runs = [(actor, op, at) for actor, program in plan.actors.items() for op, at in program]
    offset = {op: at for _, op, at in runs}
    for name in ops:
        count = sum(op == name for _, op, _ in runs)
        if count != 1:
            yield Violation(
                "SW-ACTORS", f"op {name!r} stands {count} times in the programs, not once"
            )
    for actor, op, at in runs:
        if op not in ops:
            yield Violation("SW-ACTORS", f"actor {actor!r} runs {op!r}, which the graph lacks")
        elif ops[op].actor != actor:
            yield Violation("SW-ACTORS", f"op {op!r} runs on {actor!r}, not on {ops[op].actor!r}")
        elif (launch := ops[op].launch) is not None and offset.get(launch, at) != at:
            yield Violation(
                "SW-ACTORS",
                f"op {op!r} runs at offset {at}, its launch {launch!r} at {offset[launch]}",
            )
        elif plan.graph.order == "keep" and at != ops[op].offset:
            yield Violation(
                "SW-ACTORS", f"op {op!r} runs at offset {at}, declared {ops[op].offset}"
            )
    place = {op: (at, index) for index, (_, op, at) in enumerate(runs)}
    for node in plan.graph.nodes:
        for names in (node.op_names("host"), node.op_names("device") if node.device else ()):
            for first, second in pairwise(names):
                if first in place and second in place and place[first] > place[second]:
                    yield Violation(
                        "SW-ACTORS", f"phase {second!r} runs before {first!r} of the same node"
                    )


def _parted(plan: Plan) -> Iterator[Violation]:
    """Launches that the graph wants together, and that do not follow each other directly."""
    if plan.graph.launches != "together":
        return
    followers = {
        (u, v)
        for program in plan.actors.values()
        for (u, at), (v, then) in pairwise(program)
        if at == then
    }
    for before, node in pairwise(plan.graph.nodes):
        if not before.device or not node.device:
            continue  # nothing to launch
        if before.actor != node.actor or before.offset != node.offset:
            continue  # not one after the other in an iteration
        if len(node.host) > 1 or node.host[0].reads or node.host[0].writes:
            continue  # something else to do on the host
        first, second = before.op_names("host")[-1], node.op_names("host")[0]
        if (first, second) not in followers:
            yield Violation(
                "SW-ACTORS",
                f"launch {second!r} does not stand directly behind {first!r}, with which it is "
                "to be issued as one",
            )


def _slots(plan: Plan) -> Iterator[Violation]:
    written = {name for op in plan.graph.vertices.values() for name in op.op.writes}
    for name, value in plan.graph.values.items():
        copies = plan.slots.get(name)
        if copies is not None and copies < 1:
            yield Violation("SW-SLOTS", f"value {name!r} has {copies} slots", value=name)
        if copies is None and value.storage == "slots" and name in written:
            yield Violation("SW-SLOTS", f"value {name!r} has no number of slots", value=name)


def _wait_ends(plan: Plan) -> Iterator[Violation]:
    """A wait's ends are ops, and a stream waits only for device work."""
    ops = plan.graph.vertices
    for wait in plan.waits:
        unknown = [op for op in (wait.source, wait.target) if op not in ops]
        if unknown:
            yield Violation("SW-ACTORS", f"a wait names {unknown[0]!r}, which the graph lacks")
        elif ops[wait.target].side == "device" and ops[wait.source].side == "host":
            launch = ops[wait.target].launch
            repair = f"let {launch} wait for {wait.source} of {ago(wait.distance)}"
            yield Violation(
                "SW-HOST-ORDER",
                f"stream {ops[wait.target].actor!r} cannot wait for host op {wait.source!r}: host "
                f"work has no event. Let {launch!r}, which launches "
                f"{wait.target!r}, wait for it\n  repair   {repair}",
                before=access_of(plan, wait.source, "runs", wait.source),
                after=access_of(plan, wait.target, "waits for", wait.source),
                needed=wait.distance,
                repair=repair,
            )
