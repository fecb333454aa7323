"""From declarations to a plan: orders, slots, waits, proof and period.

This file is the recipe; each ingredient has its own. Same graph, costs and pins: same plan, to
the byte, on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from .errors import GraphError, did_you_mean
from .events import Actors, Event, listing_programs, with_streams
from .period import op_costs, period
from .plan import Plan
from .requirements import Requirement, requirements
from .slots import choose_slots
from .step_graph import StepGraph
from .validate import unread_values, validate
from .waits import Frame, Synchronization, synchronize
from .witness import Prover


def compile_plan(
    graph: StepGraph,
    *,
    costs: Mapping[str, float] | None = None,
    slots: Mapping[str, int] | None = None,
    order: Literal["keep", "search"] | None = None,
) -> Plan:
    """Derive the plan: what waits for what, how many slots, what bounds the speed; with proof.

    `costs` are durations in µs by op name, as a profile gives them; `slots` pins values by
    name; `order` overrides the graph's own. Raises `GraphError` for declarations that are wrong
    and `DeadlockError`, with the cycle, for a graph that no waits can order.
    """
    validate(graph)
    durations = op_costs(graph, _known_costs(graph, costs))
    pins = _pinned(graph, slots)
    return plan_for(graph, with_streams(graph, listing_programs(graph)), durations, pins)


def plan_for(
    graph: StepGraph,
    actors: Actors,
    costs: Mapping[str, float],
    pins: Mapping[str, int | None],
    notes: tuple[str, ...] = (),
) -> Plan:
    """The plan for given actor programs. `pins` names the slots of every value but the open ones."""
    frame = Frame.of(graph, actors)
    fixed = requirements(graph, pins)
    synchronize(frame, fixed)  # raises the deadlock that no number of slots can cure
    chosen = choose_slots(frame, fixed, [v for v in graph.values if v not in pins], costs)
    slots = {name: pins[name] if name in pins else chosen.slots[name] for name in graph.values}
    needed = requirements(graph, slots)
    found = synchronize(frame, needed)
    prover = Prover(frame, found)
    result = period(graph, _events(frame, found), costs)
    return Plan(
        graph=graph,
        actors=frame.actors,
        waits=found.waits,
        edges=prover.prove(needed),
        launch_order=prover.prove(found.launch_order),
        slots=slots,
        period_us=result.us,
        critical_cycle=result.critical,
        notes=(
            *notes,
            *(() if chosen.exact else (_HEURISTIC_SLOTS,)),
            *_guards(frame, slots, needed, found, costs, result.us),
            *(f"value {name!r} is never read" for name in unread_values(graph)),
        ),
        costs=costs,
    )


_HEURISTIC_SLOTS = (
    "slots: too many choices to compare all; chosen one value at a time, so the number of waits "
    "may not be the least (the period is)"
)


def _events(frame: Frame, found: Synchronization) -> list[Event]:
    waits = [Event(w.source, w.target, w.distance, "wait") for w in found.waits]
    return [*frame.free, *waits]


def _guards(
    frame: Frame,
    slots: Mapping[str, int | None],
    needed: list[Requirement],
    found: Synchronization,
    costs: Mapping[str, float],
    period_us: float,
) -> list[str]:
    """For each value whose slots need a wait of their own: which, and what it costs."""
    notes = []
    for value, count in slots.items():
        guards = [
            f"{wait.source} → {wait.target} (+{wait.distance})"
            for wait in found.waits
            if any(p.value == value and p.hazard in ("WAR", "WAW") for p in wait.protects)
        ]
        if count is None or not guards:
            continue
        others = [r for r in needed if r.value != value or r.hazard == "RAW"]
        events = _events(frame, synchronize(frame, others))
        cost = period_us - period(frame.graph, events, costs).us
        price = f"costs {cost:.6g} µs a step" if cost > 0 else "costs nothing in the period"
        notes.append(
            f"{count} slot{'s' if count > 1 else ''} of {value!r}: guarded by "
            f"{', '.join(guards)}; {price}"
        )
    return notes


def _pinned(graph: StepGraph, slots: Mapping[str, int] | None) -> dict[str, int | None]:
    """The slots of each value that are not open: declared, given, or None where it is fresh."""
    given = dict(slots or {})
    for name, count in given.items():
        value = graph.values.get(name)
        if value is None:
            raise GraphError(
                f"slots: there is no value {name!r}{did_you_mean(name, graph.values)}.",
                code="SW-UNKNOWN-NAME",
            )
        if value.storage == "fresh" or count < 1:
            problem = "is fresh and has no slots" if value.storage == "fresh" else "needs ≥ 1 slot"
            raise GraphError(
                f"slots: value {name!r} {problem}.", code="SW-SLOTS", line=value.line
            )
    pins: dict[str, int | None] = {}
    for name, value in graph.values.items():
        if value.storage == "fresh":
            pins[name] = None
        elif name in given:
            pins[name] = given[name]
        elif value.slots is not None:
            pins[name] = value.slots
    return pins


def _known_costs(
    graph: StepGraph, costs: Mapping[str, float] | None
) -> Mapping[str, float] | None:
    for name in costs or {}:
        if name not in graph.vertices:
            raise GraphError(
                f"costs: there is no op {name!r}{did_you_mean(name, graph.vertices)}.",
                code="SW-UNKNOWN-NAME",
            )
    return costs
