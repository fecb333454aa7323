"""From declarations to a plan: orders, slots, waits, proof and period.

This file is the recipe; each ingredient has its own. Same graph, costs and pins: same plan, to
the byte, on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from .. import arguments
from ..digest import declaration_digest
from ..errors import GraphError, did_you_mean
from ..plan import HINTS, Plan
from ..rates import costs_by_firing, has_rates, slots_by_firing, unrolled
from ..step_graph import StepGraph
from ..validate import unread_values, validate
from .bounds import bounded
from .budget import Budget
from .channels import derive_capacities
from .conditional import conditional_notes, waits_by_mode
from .events import Actors, Precedence, listing_programs, with_streams
from .leases import lease_notes, leased, pinned_leases
from .lifting import lifted, one_of_equal_ranks
from .matching import check_matching
from .order import OrderChoice, choose_order
from .paths import closure_cells
from .period import op_costs, period
from .requirements import Requirement, requirements
from .slots import Compared, choose_slots
from .turns import shared_slots, with_slots_apart
from .uniform import check_uniform
from .waits import Frame, Needs, Synchronization, fewest_waits, synchronize
from .witness import Prover


def compile_plan(
    graph: StepGraph,
    *,
    costs: Mapping[str, float] | None = None,
    slots: Mapping[str, int] | None = None,
    order: Literal["keep", "search"] | None = None,
    costs_from: str | None = None,
) -> Plan:
    """Derive the plan: what waits for what, how many slots, what bounds the speed; with proof.

    `costs` are durations in µs by op name, as a profile gives them; `slots` pins values by
    name; `order` overrides the graph's own; `costs_from` says where the costs come from, to be
    shown beside every period. Raises `GraphError` for declarations that are wrong
    and `DeadlockError`, with the cycle, for a graph that no waits can order.
    """
    arguments.a(
        "compile_plan", "graph", graph, StepGraph, "a step graph, as `step_graph` or a config makes"
    )
    if order is not None:
        arguments.one_of("compile_plan", "order", order, ("keep", "search"))
    validate(graph)
    if has_rates(graph):
        graph = unrolled(graph)
        costs, slots = costs_by_firing(graph, costs or {}), slots_by_firing(graph, slots or {})
    if graph.ranks:
        check_matching(graph)
        check_uniform(graph)
    durations = op_costs(graph, _known_costs(graph, costs))
    pins = _pinned(graph, slots)
    if (one := one_of_equal_ranks(graph, durations, pins)) is not None:
        own = {op: us for op, us in durations.items() if op in one.vertices}
        few = {name: k for name, k in (slots or {}).items() if name in one.values}
        plan = lifted(compile_plan(one, costs=own, slots=few, order=order), graph, durations)
        return replace(plan, costs_from=costs_from or _said_of(graph, costs))
    apart = with_slots_apart(graph, pins)
    programs, notes = listing_programs(graph), tuple[str, ...]()
    if (order or graph.order) == "search":
        chosen = _searched(apart, durations, pins)
        programs, notes = dict(chosen.programs), chosen.notes
    actors = with_streams(graph, programs)
    if apart is not graph:
        pins = shared_slots(graph, plan_for(apart, actors, durations, pins, ()))
    graph, derived = derive_capacities(graph, actors, durations, pins)
    plan = plan_for(graph, actors, durations, pins, (*notes, *derived))
    return replace(plan, costs_from=costs_from or _said_of(graph, costs))


def _said_of(graph: StepGraph, costs: Mapping[str, float] | None) -> str:
    """Where the costs of a plan come from, if the caller does not say."""
    if not costs:
        return HINTS
    return "as given" if len(costs) == len(graph.vertices) else f"as given, else {HINTS}"


ORDER_CELLS = 200_000_000  # for the slots of all orders whose waits are counted: a second
PRICE_CELLS = 300_000_000  # for what guarding waits cost: a second
_CHOSEN: dict[str, OrderChoice] = {}


def forget_orders() -> None:
    """Empty the cache of searched orders, so that the next search can be timed."""
    _CHOSEN.clear()


def _searched(
    graph: StepGraph, costs: Mapping[str, float], pins: Mapping[str, int | None]
) -> OrderChoice:
    """The order search, remembered by what it depends on: declarations, costs and pins."""
    key = declaration_digest(graph, costs, pins)
    if key not in _CHOSEN:
        leases = pinned_leases(graph)
        fixed = [*requirements(graph, pins), *leases]
        budget = Budget(cells=ORDER_CELLS)

        def count_waits(programs: Actors) -> int:
            frame = Frame.of(graph, with_streams(graph, programs))
            slots, _ = _slots(frame, fixed, pins, costs, budget)
            needed = [*requirements(graph, slots), *leases]
            return len(fewest_waits(frame, Needs.of(frame, needed)))

        _CHOSEN[key] = choose_order(graph, fixed, costs, count_waits)
    return _CHOSEN[key]


def _slots(
    frame: Frame,
    fixed: Sequence[Requirement],
    pins: Mapping[str, int | None],
    costs: Mapping[str, float],
    budget: Budget,
) -> tuple[dict[str, int | None], Compared]:
    """The slots of every value, and which choices were compared to find them."""
    values = frame.graph.values
    still_open = [name for name in values if name not in pins]
    chosen = choose_slots(frame, fixed, still_open, costs, budget)
    return {n: pins[n] if n in pins else chosen.slots[n] for n in values}, chosen.compared


def plan_for(
    graph: StepGraph,
    actors: Actors,
    costs: Mapping[str, float],
    pins: Mapping[str, int | None],
    notes: tuple[str, ...] = (),
) -> Plan:
    """The plan for given actor programs. `pins` has the slots of every value but the open ones."""
    frame = Frame.of(graph, actors)
    pinned = pinned_leases(graph)
    fixed = [*requirements(graph, pins), *pinned]
    fewest_waits(frame, Needs.of(frame, fixed))  # raises a deadlock that no slots can cure
    slots, compared = _slots(frame, fixed, pins, costs, Budget())
    data = [*requirements(graph, slots), *pinned]
    tied, found, leases = leased(frame, data, synchronize(frame, data), costs)
    needed, found = bounded(frame, tied, found, costs)
    prover, waits = Prover(frame, found), waits_by_mode(frame, needed, found, leases, costs)
    result = period(graph, found.orders(frame), costs)
    return Plan(
        graph=graph,
        actors=frame.actors,
        waits=waits,
        edges=prover.prove(needed),
        launch_order=prover.prove(found.launch_order),
        slots=slots,
        period_us=result.us,
        critical_cycle=result.critical,
        notes=(
            *notes,
            *_SLOT_NOTES[compared],
            *_guards(frame, slots, needed, found, costs, result.us),
            *lease_notes(found.waits),
            *conditional_notes(graph, waits),
            *(
                f"bounding wait {r.source} → {r.target} (+{r.distance}): nothing else limits how "
                f"far {r.target} runs ahead"
                for r in needed
                if r.hazard == "BOUND"
            ),
            *(f"value {name!r} is never read" for name in unread_values(graph)),
        ),
        costs=costs,
        leases=leases,
    )


_SLOT_NOTES: Mapping[Compared, tuple[str, ...]] = {
    "all": (),
    "one at a time": (
        "slots: too many choices to compare all; chosen one value at a time, so the number of "
        "waits may not be the least (the period is)",
    ),
    "none": (
        "slots: too many choices to compare; each value has as many as it can make use of, so "
        "fewer may do (the period is the least)",
    ),
}


def _guards(
    frame: Frame,
    slots: Mapping[str, int | None],
    needed: Sequence[Requirement],
    found: Synchronization,
    costs: Mapping[str, float],
    period_us: float,
) -> list[str]:
    """The waits that exist only because slots are few: what each guards, and what it costs."""
    if all(count is None for count in slots.values()):
        return []
    data = [r for r in needed if r.value not in slots or r.hazard == "RAW"]
    plain = fewest_waits(frame, Needs.of(frame, data))
    names = list(frame.index)
    unguarded = {(names[u], names[v], d) for u, v, d in plain}
    slower = _period_of(frame, plain, costs) < period_us
    affordable = PRICE_CELLS // closure_cells(frame.weights)
    notes: list[str] = []
    for wait in found.waits:
        guarded = dict.fromkeys(p.value for p in wait.protects if p.hazard in ("WAR", "WAW"))
        few = {name: k for name in guarded if (k := slots.get(name)) is not None}
        if (wait.source, wait.target, wait.distance) in unguarded or not few:
            continue
        price = "it costs nothing in the period"
        if slower and len(notes) >= affordable:
            price = "its cost is not computed, because there are many guards"
        elif slower:
            others = [r for r in needed if r.value not in few or r.hazard == "RAW"]
            waits = fewest_waits(frame, Needs.of(frame, others))
            cost = period_us - _period_of(frame, waits, costs)
            price = f"it costs {cost:.6g} µs a step" if cost > 0 else price
        counts = ", ".join(f"{n!r} ({k} slot{'s' * (k != 1)})" for n, k in few.items())
        notes.append(
            f"guarding wait {wait.source} → {wait.target} (+{wait.distance}) for {counts}: {price}"
        )
    return notes


def _period_of(
    frame: Frame, waits: Sequence[tuple[int, int, int]], costs: Mapping[str, float]
) -> float:
    """The period if these waits were all."""
    names = list(frame.index)
    events = [Precedence(names[u], names[v], d, "wait") for u, v, d in waits]
    return period(frame.graph, [*frame.free, *events], costs).us


_SLOTS = "value names to numbers of slots"


def _pinned(graph: StepGraph, slots: Mapping[str, int] | None) -> dict[str, int | None]:
    """The slots of each value that are not open: declared, given, or None where it is fresh."""
    given = dict(arguments.mapping("compile_plan", "slots", slots or {}, _SLOTS, "SW-SLOTS"))
    for name, count in given.items():
        value = graph.values.get(name)
        if value is None:
            raise GraphError(
                f"slots: there is no value {name!r}{did_you_mean(name, graph.values)}.",
                code="SW-UNKNOWN-NAME",
            )
        if value.storage == "fresh":
            problem = f"slots: value {name!r} is fresh and has no slots."
            raise GraphError(problem, code="SW-SLOTS", line=value.line)
        arguments.whole("compile_plan", f"slots[{name!r}]", count, 1, code="SW-SLOTS")
    pins: dict[str, int | None] = {}
    for name, value in graph.values.items():
        if value.storage == "fresh":
            pins[name] = None
        elif name in given:
            pins[name] = given[name]
        elif value.slots is not None:
            pins[name] = value.slots
    return pins


def _known_costs(graph: StepGraph, costs: Mapping[str, float] | None) -> Mapping[str, float] | None:
    arguments.mapping("compile_plan", "costs", costs or {}, "op names to µs", "SW-COST")
    for name, us in (costs or {}).items():
        arguments.number("compile_plan", f"costs[{name!r}]", us)
        if name not in graph.vertices:
            raise GraphError(
                f"costs: there is no op {name!r}{did_you_mean(name, graph.vertices)}.",
                code="SW-UNKNOWN-NAME",
            )
    return costs
