"""How the serial program of one plan passes into that of another: by iteration, then by listing.

In between, two ops of one plan may change places where only the listing orders them. It may be that
an op of the other plan comes after the second of them and before the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..graph.errors import StepweaveError
from ..graph.planner.crossings import Pair
from ..graph.planner.splice import first_alone, last_alone, sorted_by_time
from ..graph.switch import Crossing, Instance, Switch
from .serial_program import SerialProgram


@dataclass(frozen=True)
class SerialTurn:
    """What is run between the loops of two serial programs: as of `Switch`, of one thread."""

    leaves: int
    enters: int
    ops: tuple[Instance, ...]
    lead: int

    @staticmethod
    def of(switch: Switch) -> SerialTurn:
        """Raises `StepweaveError` where no serial program keeps all requirements."""
        reach = 2 + max(
            (abs(at.step) for c in switch.crossings for at in (c.source, c.target)), default=0
        )
        serial = [SerialProgram.of(plan.graph) for plan in switch.plans]
        first, then = (each.order() for each in serial)
        back = range(min(o for _, o in first) - reach, max(o for _, o in first))
        onward = range(min(o for _, o in then), max(o for _, o in then) + reach)
        instances = [
            Instance(part, op, t - o)
            for part, (order, each) in enumerate(((first, back), (then, onward)))
            for t in each
            for op, o in order
        ]
        known, offsets = set(instances), (dict(first), dict(then))
        arcs = [*_own(switch, serial, instances)]
        arcs += [
            (c.source, c.target, 0.0)
            for c in switch.crossings
            if _binds(c, switch) and {c.source, c.target} <= known
        ]

        def iteration(at: Instance) -> int:
            return at.step + offsets[at.part][at.op]

        places = _places(switch)
        times = {
            at: (iteration(at) + switch.delay * at.part) * len(places) + places[at[:2]]
            for at in instances
        }
        order = sorted_by_time(instances, arcs, times)
        if order is None:
            raise StepweaveError(
                "no serial program passes from the one plan to the other: run them by executor "
                "'threads'",
                code="SW-SWITCH",
            )
        leaves = last_alone([order], iteration, back[-1])
        enters = first_alone([order], iteration, onward[0])
        ops = (at for at in order if (iteration(at) > leaves, iteration(at) < enters)[at.part])
        lead = max(1, 1 + min(o for _, o in first) - leaves)
        return SerialTurn(leaves, enters, tuple(ops), lead)


def _own(
    switch: Switch, serial: Sequence[SerialProgram], instances: Sequence[Instance]
) -> Iterator[tuple[Instance, Instance, float]]:
    """What each plan orders among its own ops."""
    known = set(instances)
    for part, (plan, program) in enumerate(zip(switch.plans, serial, strict=True)):
        following: dict[str, list[tuple[str, int]]] = {}
        for source, target, distance in program.orders(plan.slots):
            following.setdefault(source, []).append((target, distance))
        for at in instances:
            for target, distance in following.get(at.op, ()) if at.part == part else ():
                later = Instance(part, target, at.step + distance)
                if later in known:
                    yield at, later, 0.0


def _binds(crossing: Crossing, switch: Switch) -> bool:
    """Whether one thread has to keep it: it launches nothing and cannot run ahead, and a version
    that the plan after goes back for keeps its cell, of which a run with a course has enough."""
    reused = crossing.hazard == "WAR" and crossing.value in switch.before.graph.values
    return crossing.hazard not in ("LAUNCH", "BOUND") and not reused


def _places(switch: Switch) -> Mapping[tuple[int, str], int]:
    """Where each op of either plan stands in one listing of both."""
    pair = Pair(switch.before, switch.after)
    ops = [(part, op) for part, plan in enumerate(switch.plans) for op in plan.graph.vertices]
    return {op: place for place, op in enumerate(sorted(ops, key=lambda op: pair.place(*op)))}
