"""Runs of unrolled plans, told in the steps and values of the declared graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..graph.errors import StepweaveError, did_you_mean
from ..graph.plan import Plan
from ..graph.ranks import declared_name
from .errors import NodeFailure
from .report import RunReport
from .run_arguments import RunArguments


def in_cycles(plan: Plan, given: RunArguments) -> RunArguments:
    """The arguments with cycles in place of steps, and each version of a cycle to be kept.

    Raises `StepweaveError` for steps that are no whole number of cycles.
    """
    graph = plan.graph
    if given.steps is not None and given.steps % graph.cycle:
        raise StepweaveError(
            f"run: the nodes of {graph.name!r} recur after {graph.cycle} steps, so a run has a "
            f"multiple of that many, not {given.steps}.",
            code="SW-RATE",
        )
    keep: list[str] = []
    for name in given.keep:
        if (declared := graph.declared) is not None and name not in declared.values:
            raise StepweaveError(
                f"{graph.name}: there is no value {name!r}{did_you_mean(name, declared.values)}"
            )
        keep += [each for each in graph.values if declared_name(graph, each) == name]
    steps = None if given.steps is None else given.steps // graph.cycle
    heard = given.on_failure
    told = None if heard is None else lambda failure: heard(in_step(plan, failure))
    return replace(given, steps=steps, keep=keep, on_failure=told)


def in_step(plan: Plan, failure: NodeFailure) -> NodeFailure:
    """A failure of such a run, told with the step of the declared graph. Raises nothing."""
    node = plan.graph.vertices[failure.op].node
    step = failure.step * plan.graph.cycle + (node.firing.step if node.firing else 0)
    assert failure.__cause__ is not None, "what the op raised"
    found = NodeFailure(failure.node, failure.op, step, failure.__cause__)
    for note in getattr(failure, "__notes__", ()):
        found.add_note(note)
    return found


def in_steps(plan: Plan, report: RunReport, keep: Sequence[str]) -> RunReport:
    """The report of such a run: its steps, and all versions of each value in order."""
    graph, steps = plan.graph, report.steps * plan.graph.cycle
    kept: dict[str, Sequence[Any]] = {}
    for name in keep:
        if name in graph.values and graph.values[name].external:
            kept[name] = [graph.values[name].initial] * steps
            continue
        turns = [report.kept[each] for each in graph.values if declared_name(graph, each) == name]
        kept[name] = [version for cycle in zip(*turns, strict=True) for version in cycle]
    return replace(report, steps=steps, kept=kept)
