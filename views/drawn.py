"""What drawings say about a plan beyond its words: short names, labels of waits, what to ghost."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.plan import Edge, Plan, Wait
from .words import carried, count, ghosts


def short(op: str) -> str:
    """The op without its side, where the lane says which."""
    return op.replace(".host", "").replace(".device", "")


def wait_label(plan: Plan, wait: Wait) -> str:
    """`RAW host_drafts@-1 +2`: what the wait is most plainly for, and how much else it keeps."""
    names = [f"{p.hazard} {p.value}".strip() for p in wait.protects]
    if not names:
        return "launch order"

    def plainness(k: int) -> tuple[bool, int, bool, int]:
        p = wait.protects[k]
        ends = (p.before == wait.source) + (p.after == wait.target)
        return p.hazard == "LAUNCH", -ends, p.hazard != "RAW", k

    best = min(range(len(names)), key=plainness)
    main = wait.protects[best]
    back = next(
        (
            f"@-{edge.carry}"
            for edge in plan.edges
            if edge.carry
            and (edge.hazard, edge.value) == (main.hazard, main.value)
            and (edge.source, edge.target) == (main.before, main.after)
        ),
        "",
    )
    more = len(set(names)) - 1
    label = "launch order" if main.hazard == "LAUNCH" else names[best] + back
    return f"{label} +{more}" if more else label


def wait_title(plan: Plan, wait: Wait) -> str:
    """What the wait is and all that it protects, in one line."""
    step = f" of step i{wait.distance:+d}" if wait.distance else ""
    names = dict.fromkeys(f"{p.hazard} {p.value}".strip() for p in wait.protects)
    return f"{wait.target}{step} waits for {wait.source}: {', '.join(names) or 'launch order'}"


def ghost_title(plan: Plan, edges: list[int]) -> str:
    """`RAW sampled@-1: sample.device before prepare_inputs.device of step i+1, by path`."""
    first = plan.edges[edges[0]]
    names = dict.fromkeys(f"{plan.edges[k].hazard} {carried(plan.edges[k])}" for k in edges)
    step = f" of step i{first.distance:+d}" if first.distance else ""
    how = ", ".join(dict.fromkeys(plan.edges[k].by for k in edges))
    return f"{', '.join(names)}: {first.source} before {first.target}{step}, already by {how}"


def ghost_edges(plan: Plan) -> dict[tuple[str, str, int], list[int]]:
    """Indices into `plan.edges` of what needs no wait of its own, by (source, target, distance)."""
    place = {id(edge): k for k, edge in enumerate(plan.edges)}
    return {key: [place[id(edge)] for edge in edges] for key, edges in ghosts(plan).items()}


def carries(edges: list[Edge]) -> str:
    """`progress@-1, drafts@-1`: the values among these that are read in a later step."""
    return ", ".join(
        dict.fromkeys(carried(edge) for edge in edges if edge.hazard == "RAW" and edge.carry)
    )


def summary(plan: Plan) -> str:
    """`106 required orderings, 2 waits; period 500 µs, set by compute alone`."""
    actors = list(dict.fromkeys(plan.graph.vertices[op].actor for op, _ in plan.critical_cycle))
    said = (
        f"{count(len(plan.edges), 'required ordering')}, {count(len(plan.waits), 'wait')}; "
        f"period {plan.step_us:,.0f} µs a step ({plan.costs_from})"
    )
    if not actors:
        return said
    return f"{said}, set by {actors[0]} alone" if len(actors) == 1 else said + _round(actors)


def _round(actors: list[str]) -> str:
    return f", set by a cycle through {', '.join(actors[:-1])} and {actors[-1]}"


def critical_cycle(plan: Plan) -> Iterator[str]:
    """The hops of the cycle that sets the period."""
    for op, distance in plan.critical_cycle:
        yield f"{op} →" if distance == 0 else f"{op} →({distance:+d})"
    if plan.critical_cycle:
        yield plan.critical_cycle[0][0]


def slot_words(plan: Plan, value: str) -> str:
    """`2 slots, pinned`; `fresh, host`."""
    copies = plan.slots.get(value)
    place = plan.graph.values[value].place
    return f"fresh, {place}" if copies is None else f"{count(copies, 'slot')}, {place}"
