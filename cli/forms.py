"""What `check` says of the other plans of a pipeline, between which its engine goes."""

from __future__ import annotations

from ..configs.abstract import AbstractGraph
from .planned import Planned


def periods(found: Planned) -> dict[str, float]:
    """By plan the predicted µs a step, with the costs of the first; empty without other plans."""
    config = found.loaded.config
    if isinstance(config, AbstractGraph) or not config.plans:
        return {}
    from ..serving.pipeline import placed, step_graph
    from ..serving.plans import USUAL

    periods = {USUAL: found.plan.step_us}
    for name, form in config.forms.items():
        graph = step_graph(form)
        costs = {op: us for op, us in found.plan.costs.items() if op in graph.vertices}
        periods[name] = placed(form, graph, costs).step_us
    return periods


def in_words(found: dict[str, float]) -> str:
    """The periods, and with which plan an engine goes on if they are as predicted."""
    said = ", ".join(f"{name} {us:,.6g} µs a step" for name, us in found.items())
    return f"{said}; goes on with {min(found, key=found.__getitem__)} if they are as predicted"
