"""Hypothesis strategies for step graphs and plans, and how many examples tests may take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from hypothesis import HealthCheck, reject, settings
from hypothesis import strategies as st

from stepweave.graph.errors import DeadlockError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.graphs import grow_step_graph

T = TypeVar("T")


def examples(count: int) -> settings:
    """So many examples, the same on every run and machine, however slow."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def step_graphs(
    draw: st.DrawFn, most_nodes: int = 7, order: Literal["keep", "search"] = "keep"
) -> StepGraph:
    """Small random graphs, of which some cannot be ordered."""

    def pick(options: Sequence[T], /) -> T:
        return draw(st.sampled_from(options))

    return grow_step_graph(pick, most_nodes=most_nodes, order=order)


@st.composite
def plans(draw: st.DrawFn, most_nodes: int = 7) -> Plan:
    """Plans of those that can."""
    graph = draw(step_graphs(most_nodes))
    try:
        return compile_plan(graph)
    except DeadlockError:
        reject()
