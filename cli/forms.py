"""What `check` says of the other plans of a pipeline, between which its engine goes."""

from __future__ import annotations

from itertools import permutations

from ..configs.abstract import AbstractGraph
from ..graph.answers.whatif import speedup
from ..graph.plan import Plan
from ..graph.planner.switching import switch_plans
from .planned import Planned


def plans(found: Planned) -> dict[str, Plan]:
    """All plans by name, with the costs of the first; empty without other plans."""
    config = found.loaded.config
    if isinstance(config, AbstractGraph) or not config.plans:
        return {}
    from ..serving.pipeline import placed, step_graph
    from ..serving.plans import USUAL

    plans = {USUAL: found.plan}
    for name, form in config.forms.items():
        graph = step_graph(form)
        costs = {op: us for op, us in found.plan.costs.items() if op in graph.vertices}
        plans[name] = placed(form, graph, costs)
    return plans


def periods(found: Planned) -> dict[str, float]:
    """By plan the predicted µs a step; empty without other plans."""
    return {name: plan.step_us for name, plan in plans(found).items()}


def gain_of_forms(found: Planned) -> str | None:
    """What an engine gains that goes from plan to plan, and what going over costs; or nothing."""
    every = plans(found)
    if not every:
        return None
    usual = found.plan
    best = min(every, key=lambda name: every[name].step_us)
    switches = [switch_plans(*pair) for pair in permutations(every.values(), 2)]
    late = max(each.costs_us for each in switches)
    drained = max(each.drained_us for each in switches)
    return (
        f"plans: {speedup(usual, every[best]):.2f}× the steps per second of the plan that a run "
        f"begins with, by {best} ({every[best].step_us:,.6g} µs a step); a switch makes steps at "
        f"most {late:,.6g} µs late, once, {drained:,.6g} µs if the run were drained for it"
    )


def in_words(found: dict[str, float]) -> str:
    """The periods, and with which plan an engine goes on if they are as predicted."""
    said = ", ".join(f"{name} {us:,.6g} µs a step" for name, us in found.items())
    return f"{said}; goes on with {min(found, key=found.__getitem__)} if they are as predicted"
