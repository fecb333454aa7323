"""What there is between two places of a plan: waits, requirements, paths, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from .. import arguments
from ..errors import GraphError, did_you_mean
from ..plan import Plan, Wait
from ..ranks import declared_name
from ..step_graph import StepGraph, Vertex
from ..verifier.words import instant, later
from .explain import Reason, WaitExplanation, explain_wait, path_of, path_words, reason_of
from .orderings import Leg, Orderings, legs_of


@dataclass(frozen=True, slots=True)
class Order:
    """How soon one op is done before another may start, in both directions.

    `first(i)` is before `then(i + d)` for every d ≥ `ahead`, and `then(i + d)` before `first(i)`
    for every d ≤ `behind`; None: for no d. In between they may overlap.
    """

    first: str
    then: str
    ahead: int | None
    behind: int | None
    path: tuple[tuple[str, int], ...]  # of `ahead`
    legs: tuple[Leg, ...]

    @property
    def overlap(self) -> tuple[int | None, int | None]:
        """The least and the greatest d for which `then(i + d)` may run beside `first(i)`.

        None where there is no bound. Empty where the least exceeds the greatest.
        """
        least = None if self.behind is None else self.behind + 1
        return least, None if self.ahead is None else self.ahead - 1

    def at(self, distance: int) -> str:
        """`before`, `after` or `overlap`: first(i) as seen from then(i + distance)."""
        if self.ahead is not None and distance >= self.ahead:
            return "before"
        if self.behind is not None and distance <= self.behind:
            return "after"
        return "overlap"

    def words(self) -> str:
        """What is ordered and what may overlap, for every distance."""
        if self.first == self.then:
            return f"{self.first} runs its steps one after another"
        parts = []
        if self.ahead is not None:
            parts.append(f"{instant(self.first, self.then, self.ahead)} and later")
        if self.behind is not None and self.behind != (self.ahead or 0) - 1:
            parts.append(f"{self.then}({later(self.behind)}) before {self.first}(i)")
        return "; ".join([*parts, self.overlap_words()])

    def overlap_words(self) -> str:
        """Which steps of the second op may run beside step i of the first."""
        least, most = self.overlap
        if least is None and most is None:
            return "nothing orders them: they may overlap in any steps"
        if least is None or most is None:
            bound = f"{later(most)} or earlier" if most is not None else f"{later(least or 0)} on"
            return f"may overlap with {self.then} of steps {bound}"
        if least > most:
            return "they never overlap"
        if least == most:
            return f"may overlap with {self.then} of step {later(least)}"
        return f"may overlap with {self.then} of steps {later(least)} to {later(most)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.first,
            "to": self.then,
            "ahead": self.ahead,
            "behind": self.behind,
            "path": [list(step) for step in self.path],
            "path_words": path_words(self.first, self.legs) if self.path else "",
            "words": self.words(),
        }


@dataclass(frozen=True, slots=True)
class Between:
    """Everything between the ops `first` and the ops `then`.

    `waits` and `requirements` lead from the first to the second, `back_*` the other way.
    """

    first: tuple[str, ...]
    then: tuple[str, ...]
    waits: tuple[WaitExplanation, ...]
    back_waits: tuple[WaitExplanation, ...]
    requirements: tuple[Reason, ...]
    back_requirements: tuple[Reason, ...]
    orders: tuple[Order, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "from": list(self.first),
            "to": list(self.then),
            "waits": [wait.to_json() for wait in self.waits],
            "back_waits": [wait.to_json() for wait in self.back_waits],
            "requirements": [reason.to_json() for reason in self.requirements],
            "back_requirements": [reason.to_json() for reason in self.back_requirements],
            "orders": [order.to_json() for order in self.orders],
        }


def between(plan: Plan, first: Sequence[str], then: Sequence[str]) -> Between:
    """What there is between two sets of ops, as `ops_named` gives them.

    Raises `GraphError` if `plan` is not a plan, and `KeyError` for ops that it has not.
    """
    arguments.a("between", "plan", plan, Plan, arguments.A_PLAN)
    orderings = Orderings(plan)
    return Between(
        tuple(first),
        tuple(then),
        tuple(explain_wait(plan, wait) for wait in _leading(plan, first, then)),
        tuple(explain_wait(plan, wait) for wait in _leading(plan, then, first))
        if set(first) != set(then)
        else (),
        _reasons(plan, orderings, first, then),
        _reasons(plan, orderings, then, first) if set(first) != set(then) else (),
        tuple(order(plan, orderings, u, v) for u, v in product(first, then)),
    )


def order(plan: Plan, orderings: Orderings, first: str, then: str) -> Order:
    """How soon the one is before the other, and the path that makes it so."""
    back = orderings.distance(then, first)
    hops = orderings.path(first, then)
    return Order(
        first,
        then,
        orderings.distance(first, then),
        None if back is None else -back,
        path_of(first, hops),
        legs_of(plan, hops),
    )


def ops_named(plan: Plan, name: str) -> tuple[str, ...]:
    """The ops of a node, of `node.host`, or just `node.host.phase`, in listing order.

    Those of one rank or firing by `node@1` or `node#1`, and of all by the name alone. Raises
    `GraphError` with the nearest right name, or if `plan` is not a plan.
    """
    arguments.a("ops_named", "plan", plan, Plan, arguments.A_PLAN)
    vertices = plan.graph.vertices
    if name in vertices:
        return (name,)
    found = tuple(
        op
        for op, vertex in vertices.items()
        if vertex.node.name == name or _is_part(op, name) or _is_copy(plan.graph, vertex, name)
    )
    if not found:
        known = [*vertices, *(node.name for node in plan.graph.nodes)]
        raise GraphError(
            f"there is no node or op {name!r}{did_you_mean(name, known)}", code="SW-UNKNOWN-NAME"
        )
    return found


def _is_copy(graph: StepGraph, vertex: Vertex, name: str) -> bool:
    """Whether an op is meant by a name that leaves out the rank or the firing."""
    op = declared_name(graph, vertex.name)
    return name in (op, declared_name(graph, vertex.node.name)) or _is_part(op, name)


def _is_part(op: str, name: str) -> bool:
    return op.startswith(f"{name}.") and name.endswith((".host", ".device"))


def _leading(plan: Plan, first: Sequence[str], then: Sequence[str]) -> list[Wait]:
    return [wait for wait in plan.waits if wait.source in first and wait.target in then]


def _reasons(
    plan: Plan, orderings: Orderings, first: Sequence[str], then: Sequence[str]
) -> tuple[Reason, ...]:
    return tuple(
        reason_of(plan, edge, orderings.told(edge.witness))
        for edge in (*plan.edges, *plan.launch_order)
        if edge.source in first and edge.target in then
    )
