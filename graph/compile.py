"""From declarations to a plan: orders, slots, waits, proof and period."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from .errors import GraphError, did_you_mean
from .events import listing_programs, plan_edges, with_streams
from .period import op_costs, period
from .plan import Plan
from .requirements import requirements
from .step_graph import StepGraph
from .waits import Frame, synchronize
from .witness import Prover


def compile_plan(
    graph: StepGraph,
    *,
    costs: Mapping[str, float] | None = None,
    slots: Mapping[str, int] | None = None,
    order: Literal["keep", "search"] | None = None,
) -> Plan:
    """Derive the plan of a step graph."""
    durations = op_costs(graph, costs)
    frame = Frame.of(graph, with_streams(graph, listing_programs(graph)))
    chosen = {
        name: (v.slots or (slots or {}).get(name) or 2) if v.storage == "slots" else None
        for name, v in graph.values.items()
    }
    needed = requirements(graph, chosen)
    found = synchronize(frame, needed)
    prover = Prover(frame, found)
    from .events import Event, free_edges

    result = period(
        graph,
        [*frame.free, *(Event(w.source, w.target, w.distance, "wait") for w in found.waits)],
        durations,
    )
    return Plan(
        graph=graph,
        actors=frame.actors,
        waits=found.waits,
        edges=prover.prove(needed),
        launch_order=prover.prove(found.launch_order),
        slots=chosen,
        period_us=result.us,
        critical_cycle=result.critical,
        costs=durations,
    )
