"""From a pipeline config to its plan: the same for `check`, the drawings and a run."""

from __future__ import annotations

from typing import Any

from ..configs.schema import PipelineConfig
from ..graph.parameters import Resources
from ..graph.plan import Plan
from ..graph.planner.compile import compile_plan
from ..graph.step_graph import StepGraph
from ..nodes.decode_step import decode_step
from ..nodes.values import ACCEPTANCE
from ..policies.chosen import Policies
from ..policies.registry import DECISIONS, policy, policy_class


def policies_of(config: PipelineConfig) -> Policies:
    """The policy of each decision that `config` chooses by name."""
    return Policies(**{decision: _policy(config, decision) for decision in DECISIONS})


def _policy(config: PipelineConfig, decision: str) -> Any:
    chosen = getattr(config.policies, decision)
    options = policy_class(decision, chosen.kind).model_fields
    return policy(decision, chosen.kind, **{name: getattr(chosen, name) for name in options})


def step_graph(config: PipelineConfig, resources: Resources | None = None) -> StepGraph:
    """The decode step that `config` lists, to be run with `resources`.

    Without them it can be checked and drawn, and no model is loaded. Raises `GraphError`.
    """
    rule = None if resources is None else resources.get(ACCEPTANCE)
    return decode_step(
        config.nodes,
        depth=config.depth,
        max_rows=config.scheduler.max_rows,
        token_budget=config.scheduler.token_budget,
        acceptance=rule or _policy(config, "acceptance"),
        captured=config.captured,
        resources=resources,
        order=config.order,
    )


def compiled(config: PipelineConfig, resources: Resources | None = None) -> Plan:
    """The plan of `config`. Raises `GraphError`, or `DeadlockError` if no waits can order it."""
    return compile_plan(
        step_graph(config, resources), costs=config.costs, slots=config.slots, order=config.order
    )


def synchronous(config: PipelineConfig) -> PipelineConfig:
    """The same pipeline as the plain serial loop, on the same device: what every run must equal."""
    model = config.model.model_copy(update={"device": config.device})
    return config.model_copy(update={"depth": 1, "executor": "serial", "model": model})
