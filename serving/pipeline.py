"""From a pipeline config to its plan: the same for `check`, the drawings and a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..configs.schema import Method, NodeConfig, PipelineConfig
from ..graph.errors import GraphError, did_you_mean
from ..graph.plan import Plan
from ..graph.planner.compile import compile_plan
from ..graph.step_graph import StepGraph
from ..nodes.decode_step import decode_step, listing, standard_kind
from ..nodes.kind import NodeSpec, Shape
from ..nodes.machine import Machine
from ..policies.acceptance import Acceptance, Synthetic
from ..policies.chosen import Policies
from ..policies.registry import policy

DRAFTERS: Mapping[Method, str] = {
    "draft_model": "draft",
    "eagle": "draft_eagle",
    "eagle3": "draft_eagle",
    "ngram": "draft_ngram",
    "custom": "draft",  # which node `draft` replaces by a kind of its own
}
"""The kind of node that drafts by each method."""


def shape_of(config: PipelineConfig) -> Shape:
    """The sizes that the graph's declarations depend on."""
    shape = Shape(
        depth=config.depth,
        max_rows=config.scheduler.max_rows,
        token_budget=config.scheduler.token_budget,
        structured=config.structured is not None,
        captured=config.captured,
    )
    speculation = config.speculation
    if speculation is None:
        return shape
    return replace(
        shape,
        draft_tokens=speculation.tokens,
        drafter=DRAFTERS[speculation.method],
        draws=policies_of(config).acceptance.compares,
        padded=speculation.padded,
    )


def policies_of(config: PipelineConfig) -> Policies:
    """The policy of each decision that `config` chooses by name."""
    admission = policy("admission", config.scheduler.admission)
    speculation = config.speculation
    if speculation is None:
        return Policies(admission=admission)
    if speculation.synthetic_acceptance is not None:
        rule: Acceptance = Synthetic(rates=speculation.synthetic_acceptance)
    else:
        rule = policy("acceptance", speculation.acceptance)
    return Policies(admission=admission, acceptance=rule)


def step_graph(config: PipelineConfig, machine: Machine | None = None) -> StepGraph:
    """The decode step that `config` describes. Loads no model. Raises `GraphError`."""
    shape = shape_of(config)
    standard = dict(listing(shape))
    overrides: dict[str, NodeSpec] = {}
    extra: list[tuple[NodeSpec, str]] = []
    for node in config.nodes:
        spec = _spec(node, standard_kind(node.name, shape))
        if node.name in standard:
            _keeps_its_place(node)
            overrides[node.name] = spec
        elif node.after is not None:
            extra.append((spec, node.after))
        else:
            raise GraphError(
                f"node {node.name!r} is not one of this pipeline's"
                + did_you_mean(node.name, standard)
                + "; a node of your own says where it stands: `after: forward`",
                code="SW-NODE",
                line=node.line,
            )
    return decode_step(
        shape, machine, overrides=overrides, extra=extra, order=config.order, name="decode"
    )


def compiled(config: PipelineConfig, machine: Machine | None = None) -> Plan:
    """The plan of `config`. Raises `GraphError`, or `DeadlockError` if no waits can order it."""
    return compile_plan(
        step_graph(config, machine), costs=config.costs, slots=config.slots, order=config.order
    )


def synchronous(config: PipelineConfig) -> PipelineConfig:
    """The same pipeline as the plain serial loop, on the same device: what every run must equal."""
    model = config.model.model_copy(update={"device": config.device})
    return config.model_copy(update={"depth": 1, "executor": "serial", "model": model})


def _keeps_its_place(node: NodeConfig) -> None:
    for key, value in (("offset", node.offset), ("after", node.after)):
        if value is not None:
            raise GraphError(
                f"node {node.name!r}: `{key}` is given by the depth; set `depth` instead",
                code="SW-NODE",
                line=node.line,
            )


def _spec(node: NodeConfig, kind: str) -> NodeSpec:
    spec = NodeSpec(
        name=node.name,
        kind=node.kind or kind,
        stream=node.stream,
        offset=node.offset or 0,
        reads=dict(node.reads),
        options=dict(node.options),
        host_cost_us=node.host_cost_us,
        device_cost_us=node.device_cost_us,
        launch_latency_us=node.launch_latency_us,
        allow_sync=bool(node.allow_sync),
        line=node.line,
    )
    return spec if node.actor is None else replace(spec, actor=node.actor)
