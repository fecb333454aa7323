"""The steps around a switch between two plans on a clock: how the one passes into the other.

The plan before runs in its steady state, each op as early as it may; then every actor goes over as
the switch says. Steps are counted from the first of the plan after: the last before it is step −1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

from ..graph.planner.events import plan_edges
from ..graph.planner.period import delays
from ..graph.switch import Instance, Switch
from .timeline import Predecessor, Span, Timeline

Came = dict[Instance, list[tuple[Instance, float, Literal["order", "launch", "wait"]]]]
"""By instance what it comes after, so many µs after the other's start, and why."""

SETTLING = 8  # steps of the plan before until it is in its steady state


def switch_timeline(switch: Switch, steps: int = 3) -> Timeline:
    """The time of so many steps before a switch and after it; ops of skipped steps are left out.

    Raises nothing of its own.
    """
    spans = switch_spans(switch, steps)
    last = max((s.end_us for at, s in spans.items() if _shown(at, steps)), default=0.0)
    seen = [s for at, s in spans.items() if _runs(at) and s.start_us >= 0 and s.end_us <= last]
    return Timeline(
        events=tuple(sorted(seen, key=lambda span: (span.start_us, span.end_us))),
        actors=tuple(dict.fromkeys([*switch.before.actors, *switch.after.actors])),
        steps=2 * steps,
        period_us=switch.after.period_us,
        streams=frozenset(
            vertex.actor
            for plan in switch.plans
            for vertex in plan.graph.vertices.values()
            if vertex.launch is not None
        ),
    )


def switch_spans(switch: Switch, steps: int) -> dict[Instance, Span]:
    """When each op around a switch runs; the first of the steps that are shown begins at 0.

    Those of skipped steps take no time. Raises nothing of its own.
    """
    chains = _chains(switch, steps)
    came = _came(switch, chains)
    starts = _starts(set().union(*map(set, chains.values())), came)
    zero = min((us for at, us in starts.items() if _shown(at, steps)), default=0.0)
    starts = {at: us - zero for at, us in starts.items()}
    return {
        at: _span(actor, at, starts, came, _cost(switch, at))
        for actor, ops in chains.items()
        for at in ops
    }


def _came(switch: Switch, chains: Mapping[str, list[Instance]]) -> Came:
    """What each instance comes after: on its actor, by its plan, and once."""
    came: Came = defaultdict(list)
    for ops in chains.values():
        for u, v in pairwise(ops):
            came[v].append((u, _cost(switch, u), "order"))
    known = {at for ops in chains.values() for at in ops}
    for part, plan in enumerate(switch.plans):
        by_target = defaultdict(list)
        for source, target, distance, us, _ in delays(plan.graph, plan_edges(plan), plan.costs):
            by_target[target].append((source, distance, us))
        for at in (at for at in known if at.part == part):
            for source, distance, us in by_target[at.op]:
                before = Instance(part, source, at.step - distance)
                if before in known:
                    launch = plan.graph.vertices[at.op].launch == source
                    late = us if _runs(before) else 0.0
                    came[at].append((before, late, "launch" if launch else "wait"))
    for wait in switch.waits:
        came[wait.target].append((wait.source, _cost(switch, wait.source), "wait"))
    return came


def _chains(switch: Switch, steps: int) -> dict[str, list[Instance]]:
    """What each actor runs, from some steps before what is shown to some after it."""

    def alone(part: int, actor: str, iterations: range) -> list[Instance]:
        program = switch.plans[part].actors.get(actor, ())
        return [Instance(part, op, t - offset) for t in iterations for op, offset in program]

    offsets = [abs(o) for plan in switch.plans for ops in plan.actors.values() for _, o in ops]
    reach = steps + max(offsets, default=0) + 2
    first = min(switch.leaves, 0) - reach - SETTLING
    last = max(switch.enters, 0) + reach
    return {
        actor: [
            *alone(0, actor, range(first, switch.leaves + 1)),
            *switch.programs.get(actor, ()),
            *alone(1, actor, range(switch.enters, last)),
        ]
        for actor in dict.fromkeys([*switch.before.actors, *switch.after.actors])
    }


def _runs(at: Instance) -> bool:
    return (at.step >= 0) == bool(at.part)


def _shown(at: Instance, steps: int) -> bool:
    return _runs(at) and -steps <= at.step < steps


def _cost(switch: Switch, at: Instance) -> float:
    return switch.plans[at.part].costs.get(at.op, 0.0) if _runs(at) else 0.0


def _starts(known: set[Instance], came: Came) -> dict[Instance, float]:
    """When each instance starts, as early as what it comes after permits."""
    onward: dict[Instance, list[tuple[Instance, float]]] = defaultdict(list)
    left = dict.fromkeys(known, 0)
    for target, sources in came.items():
        for source, us, _ in sources:
            onward[source].append((target, us))
            left[target] += 1
    starts = dict.fromkeys(known, 0.0)
    ready = [at for at, count in left.items() if not count]
    for at in ready:
        for target, us in onward[at]:
            starts[target] = max(starts[target], starts[at] + us)
            left[target] -= 1
            if not left[target]:
                ready.append(target)
    return starts


def _span(
    actor: str, at: Instance, starts: Mapping[Instance, float], came: Came, us: float
) -> Span:
    held: Predecessor | None = None
    ready = float("-inf")
    for source, after, by in came.get(at, ()):
        if _runs(source) and starts[source] + after >= ready:
            ready, held = starts[source] + after, Predecessor(source.op, source.step, by)
    return Span(at.op, at.step, actor, starts[at], starts[at] + us, held, starts[at])
