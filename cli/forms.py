"""What is predicted of the other plans of a pipeline, between which its engine goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import TYPE_CHECKING

from ..configs.abstract import AbstractGraph
from ..configs.usual import USUAL
from ..graph.answers.whatif import speedup
from ..graph.plan import Plan
from ..graph.planner.switching import switch_plans
from ..graph.step_graph import StepGraph
from .planned import Planned, window_of

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig  # with all node kinds: abstract graphs have none


def forms(found: Planned) -> Mapping[str, PipelineConfig]:
    """All forms of a pipeline by name, that of the plan itself first; none of an abstract graph."""
    config = found.loaded.config
    return {} if isinstance(config, AbstractGraph) else {USUAL: config, **config.forms}


def plans(found: Planned) -> dict[str, Plan]:
    """All plans by name, with the costs of the first; empty without other plans."""
    others = [(name, form) for name, form in forms(found).items() if name != USUAL]
    if not others:
        return {}
    from ..serving.pipeline import placed, step_graph

    made = {USUAL: found.plan}
    for name, form in others:
        graph = step_graph(form)
        made[name] = placed(form, graph, _costs(found, form, graph))
    return made


def _costs(found: Planned, form: PipelineConfig, graph: StepGraph) -> dict[str, float]:
    """Those of the plan; what comes of a costs file, for as many query tokens as the form has."""
    costs = {op: us for op, us in found.plan.costs.items() if op in graph.vertices}
    if found.costs is not None and found.times is not None:
        times = found.costs.of(graph, rows=found.times.rows, window=window_of(form))
        read = found.times.costs
        costs |= {op: us for op, us in times.costs.items() if costs.get(op) == read.get(op)}
    return costs


def periods(found: Planned) -> dict[str, float]:
    """By plan the predicted µs a step; empty without other plans."""
    return {name: plan.step_us for name, plan in plans(found).items()}


def gains_of_forms(found: Planned) -> Iterator[str]:
    """What an engine gains that goes from plan to plan, and what going over costs; or nothing."""
    every = plans(found)
    if not every:
        return
    usual, config = found.plan, forms(found)
    alike = [name for name in every if _drafts(config[name]) == _drafts(config[USUAL])]
    best = min(alike, key=lambda name: every[name].step_us)
    if len(alike) > 1:
        yield (
            f"plans: {speedup(usual, every[best]):.2f}× the steps per second of the plan that a "
            f"run begins with, by {best} ({every[best].step_us:,.6g} µs a step)"
            if best != USUAL
            else "plans: 1.00×, since none is faster than the one that a run begins with"
        )
    for name, plan in every.items():
        if name not in alike:
            yield (
                f"plan {name} without drafts{_from(found, name)}: {plan.step_us:,.6g} µs a step, "
                f"{speedup(usual, plan):.2f}× the steps per second; so tokens come faster where a "
                f"step with drafts gives a row fewer than {usual.step_us / plan.step_us:.2f}"
            )
    switches = [switch_plans(*pair) for pair in permutations(every.values(), 2)]
    late = max(0.0, *(each.costs_us for each in switches))
    drained = max(each.drained_us for each in switches)
    yield (
        f"a switch between plans makes steps at most {late:,.6g} µs late, once, {drained:,.6g} µs "
        "if the run were drained for it"
    )


def in_words(found: Planned) -> str:
    """The periods of all plans, and with which an engine goes on if they are as predicted."""
    every, config = periods(found), forms(found)
    alike = all(_drafts(each) == _drafts(config[USUAL]) for each in config.values())
    said = ", ".join(
        f"{name}{_from(found, name)} {us:,.6g} µs a step" for name, us in every.items()
    )
    if not alike:
        return f"{said}; which gives tokens faster depends on how many drafts are kept"
    return f"{said}; goes on with {min(every, key=every.__getitem__)} if they are as predicted"


def _from(found: Planned, name: str) -> str:
    """From how many requests on the plan is meant, if not from the first."""
    config = forms(found)[USUAL]
    rows = config.plans[name].from_rows if name in config.plans else 1
    return f" from {rows} requests on" if rows > 1 else ""


def _drafts(form: PipelineConfig) -> bool:
    return form.drafter is not None
