"""How all views name waits, requirements and offsets: a reader learns the words once."""

from __future__ import annotations

from ..graph.answers.folding import rate_words
from ..graph.plan import Edge, Plan, Wait


def protected(wait: Wait) -> str:
    """`RAW sampled, WAR staging`, or what else the wait is for."""
    names = dict.fromkeys(f"{p.hazard} {p.value}".strip() for p in wait.protects)
    shown = list(names)[:3]
    more = [f"and {len(names) - 3} more"] if len(names) > 3 else []
    return ", ".join([*shown, *more]) or "launch order"


def across(plan: Plan, wait: Wait) -> str:
    actors = [plan.graph.vertices[op].actor for op in (wait.source, wait.target)]
    return " ⇒ ".join(actors)


def carried(edge: Edge) -> str:
    return f"{edge.value}@-{edge.carry}" if edge.carry else edge.value


def clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def slots_text(count: int | None) -> str:
    return "fresh" if count is None else str(count)


def us(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def per_step(plan: Plan) -> str:
    """`500 µs a step (costs: hints, not measured)`: no period stands alone."""
    return f"{a_step(plan)} (costs: {plan.costs_from})"


def a_step(plan: Plan) -> str:
    """`500 µs a step`, and for how many steps together where nodes have rates."""
    if plan.graph.cycle == 1:
        return f"{plan.period_us:,.0f} µs a step"
    return f"{plan.step_us:,.0f} µs a step, {plan.period_us:,.0f} for {plan.graph.cycle} steps"


def ghosts(plan: Plan) -> dict[tuple[str, str, int], list[Edge]]:
    """Requirements between two ops that need no wait of their own."""
    waits = {(wait.source, wait.target, wait.distance) for wait in plan.waits}
    found: dict[tuple[str, str, int], list[Edge]] = {}
    for edge in plan.edges:
        key = (edge.source, edge.target, edge.distance)
        if edge.source != edge.target and key not in waits:
            found.setdefault(key, []).append(edge)
    return found


def placed(op: str, offset: int) -> str:
    """The op, and which step it acts on in iteration t where that is not t."""
    return op if offset == 0 else f"{op} (t{-offset:+d})"


def named(plan: Plan, op: str, offset: int) -> str:
    """The op as it is placed, and how often it runs where its node has a rate."""
    rate = rate_words(plan.graph.vertices[op].node)
    return f"{placed(op, offset)}, {rate}" if rate else placed(op, offset)


def later(distance: int) -> str:
    """`step+1`; nothing for the same step."""
    return f"step{distance:+d}" if distance else ""
