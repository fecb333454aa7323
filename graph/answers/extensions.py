"""What a plan gains by what its graph declares beyond a plain step: beside the plan without it."""

from __future__ import annotations

from contextlib import suppress
from statistics import fmean
from typing import NamedTuple

from ..errors import DeadlockError
from ..plan import Plan
from ..planner.compile import compile_plan
from ..ranks import declared_name
from ..rates import without_rates
from .whatif import speedup, without_classes


class Extension(NamedTuple):
    """A name, and the plan of the graph without it: one of which so much can be `said`."""

    name: str
    said: str
    without: Plan


def extensions(plan: Plan) -> tuple[Extension, ...]:
    """Those that the graph of a plan has, but for modes (`answers/modes.py`); none of most graphs.

    One without which the graph cannot be ordered at all is left out. Raises nothing of its own.
    """
    found = []
    plain = None if plan.graph.declared is None else without_rates(plan.graph.declared)
    if plain is not None:
        said = "in which each node runs once a step, all its passes as one"
        with suppress(DeadlockError):
            found.append(Extension("rates", said, compile_plan(plain, costs=_plain_costs(plan))))
    if plan.has_classes:
        # With its rates, as it is declared: firings have the classes of their nodes.
        graph = without_classes(plan.graph.declared or plan.graph)
        said = "in which all users of a key are of one class"
        with suppress(DeadlockError):
            found.append(Extension("keys", said, compile_plan(graph, costs=plan.costs)))
    return tuple(found)


def _plain_costs(plan: Plan) -> dict[str, float]:
    """Costs by op of the graph without rates: all passes of a step in one."""
    declared = plan.graph.declared
    assert declared is not None, "a plan of firings"
    of: dict[str, list[float]] = {}
    for op, us in plan.costs.items():
        of.setdefault(declared_name(plan.graph, op), []).append(us)
    return {op: fmean(each) * declared.vertices[op].node.rate for op, each in of.items()}


def gain_words(plan: Plan, extension: Extension) -> str:
    """`keys: 1.80× the steps per second of a plan …`; where it is 1.00×, that costs make it so."""
    name, said, without = extension
    gain = f"{speedup(without, plan):.2f}"
    return (
        f"{name}: {gain}× the steps per second of a plan {said} "
        f"({without.step_us:,.6g} µs a step)"
        + (": with these costs there is room for all of it there, too" if gain == "1.00" else "")
    )
