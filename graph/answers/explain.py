"""Why a wait exists: what it protects, what would go wrong without it, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .. import arguments
from ..plan import Edge, Plan, Wait
from ..planner.events import plan_edges
from ..planner.period import period
from ..verifier.words import ago, counted, later
from .orderings import Hop, Leg, Orderings, legs_of
from .requirement_words import broken_words, needed_words, title


@dataclass(frozen=True, slots=True)
class Reason:
    """One requirement in words, and the path by which the plan, or the rest of it, orders it.

    `needed` says who writes what and who reads which version; `without` what could happen if
    nothing ordered them. `path` is (op, total distance so far), `legs` the same in few pieces.
    """

    edge: Edge
    title: str
    needed: str
    without: str
    path: tuple[tuple[str, int], ...]
    legs: tuple[Leg, ...]

    @property
    def ordered_by(self) -> str:
        return path_words(self.edge.source, self.legs)

    def to_json(self) -> dict[str, Any]:
        edge = self.edge
        return {
            "hazard": edge.hazard,
            "value": edge.value,
            "carry": edge.carry,
            "before": edge.source,
            "after": edge.target,
            "distance": edge.distance,
            "by": edge.by,
            "needed": self.needed,
            "without": self.without,
            "path": [list(step) for step in self.path],
            "path_words": self.ordered_by,
        }


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    """Everything there is to say about one wait.

    `protects`: the requirements that break without it, those of its own two ops first. `also`:
    those that it orders too but another path orders anyway; the path of each `Reason` there is
    that other one.
    """

    wait: Wait
    number: int  # its place in `plan.waits`
    realized: str
    protects: tuple[Reason, ...]
    also: tuple[Reason, ...]
    period_us: float
    period_without_us: float
    critical: bool

    @property
    def headline(self) -> str:
        wait = self.wait
        return (
            f"{wait.target} of step {later(wait.distance)} waits for {wait.source} of step i"
            f" ({ago(wait.distance)})."
        )

    @property
    def incidental(self) -> tuple[Reason, ...]:
        """Of `also`, what no single program or launch orders: the wait is a second safeguard."""
        return tuple(reason for reason in self.also if reason.edge.by not in ("order", "launch"))

    @property
    def cost(self) -> str:
        """What the wait costs in the period, by the maximum cycle ratio with and without it."""
        saved = self.period_us - self.period_without_us
        place = "on the critical cycle" if self.critical else "not on the critical cycle"
        if saved > 0:
            return (
                f"{saved:,.6g} µs a step: {self.period_us:,.6g} µs with it, "
                f"{self.period_without_us:,.6g} µs without it. It is {place}."
            )
        other = "; another cycle takes as long" if self.critical else ""
        return f"nothing: {self.period_us:,.6g} µs a step with or without it. It is {place}{other}."

    def lines(self) -> list[str]:
        """Plain sentences, one idea each."""
        said = [self.headline, self.realized]
        said += [f"{r.title}: {r.needed} Without the wait, {r.without}" for r in self.protects]
        said += [
            f"It also orders {r.title} ({r.edge.source} → {r.edge.target}), which is ordered "
            f"anyway: {r.ordered_by}."
            for r in self.incidental
        ]
        return [*said, f"It costs {self.cost}"]

    def to_json(self) -> dict[str, Any]:
        wait = self.wait
        return {
            "wait": self.number,
            "from": wait.source,
            "to": wait.target,
            "distance": wait.distance,
            "headline": self.headline,
            "realized": self.realized,
            "protects": [reason.to_json() for reason in self.protects],
            "also": [reason.to_json() for reason in self.also],
            "cost": {
                "period_us": self.period_us,
                "period_without_us": self.period_without_us,
                "critical": self.critical,
                "text": self.cost,
            },
            "lines": self.lines(),
        }


def explain_wait(plan: Plan, wait: Wait) -> WaitExplanation:
    """Why a wait of the plan exists.

    Raises `ValueError` for a wait that the plan has not, and `GraphError` if `plan` is not a plan.
    """
    arguments.a("explain_wait", "plan", plan, Plan, arguments.A_PLAN)
    number = plan.waits.index(wait)
    present, absent = Orderings(plan), Orderings(plan, without=wait)
    needed = (*plan.edges, *plan.launch_order, *_bounds_of_its_own(plan, wait))
    # Bounds hold in every mode, so waits that depend on it do not count for them.
    always = absent if wait.modes is not None else Orderings(plan.always, without=wait)
    through = [edge for edge in needed if present.through(wait, edge)]
    broken = [
        edge for edge in needed if not (always if edge.hazard == "BOUND" else absent).meets(edge)
    ]
    broken.sort(key=lambda edge: (edge.source, edge.target) != (wait.source, wait.target))
    ends = (wait.source, wait.target, wait.distance)
    rest = [event for event in plan_edges(plan) if event != (*ends, "wait")]
    return WaitExplanation(
        wait=wait,
        number=number,
        realized=_realized(plan, wait),
        protects=tuple(reason_of(plan, edge, present.told(edge.witness)) for edge in broken),
        also=tuple(reason_of(plan, e, absent.proof(e)) for e in through if e not in broken),
        period_us=plan.step_us,
        period_without_us=period(plan.graph, rest, plan.costs).us / plan.graph.cycle,
        critical=is_critical(plan, wait),
    )


def _bounds_of_its_own(plan: Plan, wait: Wait) -> Iterator[Edge]:
    """Bounds that only the wait states: the plan has them where others depend on the mode."""
    stated = {(each.hazard, each.source, each.target) for each in plan.edges}
    vertices = plan.graph.vertices
    for each in wait.protects:
        if each.hazard == "BOUND" and (each.hazard, each.before, each.after) not in stated:
            yield Edge(
                each.before,
                each.after,
                value="",
                carry=0,
                distance=wait.distance,
                hazard="BOUND",
                from_stream=vertices[each.before].actor,
                to_stream=vertices[each.after].actor,
                by="wait",
                event=each.before,
                witness=((each.before, 0), (each.after, wait.distance)),
            )


def reason_of(plan: Plan, edge: Edge, hops: Sequence[Hop]) -> Reason:
    """The requirement in words, with the path that meets it."""
    return Reason(
        edge,
        title(edge),
        needed_words(plan, edge),
        broken_words(plan, edge),
        path_of(edge.source, hops),
        legs_of(plan, hops),
    )


def is_critical(plan: Plan, wait: Wait) -> bool:
    """Whether the wait lies on the plan's critical cycle."""
    around = [*plan.critical_cycle, *plan.critical_cycle[:1]]
    hops = {(u, v, d) for (u, d), (v, _) in pairwise(around)}
    return (wait.source, wait.target, wait.distance) in hops


def path_of(source: str, hops: Sequence[Hop]) -> tuple[tuple[str, int], ...]:
    """(op, total distance so far), as plans write witnesses; empty where there is no path."""
    return ((source, 0), *((hop.target, hop.total) for hop in hops)) if hops else ()


def path_words(source: str, legs: Sequence[Leg]) -> str:
    """`a(i) → b(i+1) [wait] → c(i+1) [program of host]`."""
    steps = [f"{leg.target}({later(leg.total)}) [{leg.reason}]" for leg in legs]
    return " → ".join([f"{source}(i)", *steps])


def _realized(plan: Plan, wait: Wait) -> str:
    """Which actor records the event, and which waits for it."""
    source, target = (plan.graph.vertices[op] for op in (wait.source, wait.target))
    recording = f"{_actor(source.side, source.actor)} records an event after {wait.source}"
    others = sum(w.source == wait.source for w in plan.waits) - 1
    shared = f", as for {counted(others, 'more wait')}" if others else ""
    return (
        f"{recording}{shared}; before {wait.target}, {_actor(target.side, target.actor)} waits "
        f"for that of {ago(wait.distance)}."
    )


def _actor(side: str, name: str) -> str:
    return f"{'host thread' if side == 'host' else 'stream'} {name}"
