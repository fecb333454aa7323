"""From a pipeline config to its plan: the same for `check`, the drawings and a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from ..configs.schema import ParallelConfig, PipelineConfig
from ..graph.answers.placement import Where, best_placed
from ..graph.parameters import Resources
from ..graph.plan import Plan
from ..graph.planner.compile import compile_plan
from ..graph.planner.projection import parts, together
from ..graph.planner.uniform import check_uniform
from ..graph.ranks import declared_name
from ..graph.step_graph import StepGraph
from ..graph.verifier.verify import verify
from ..models.stage import Stage
from ..nodes.decode_step import decode_step
from ..nodes.node_config import AUTO, NodeConfig
from ..nodes.registry import kind
from ..nodes.stage_ranks import all_stages, bubble, costs_of_stages
from ..nodes.stages import late, refuse_messages, staged
from ..nodes.values import ACCEPTANCE, LINKS
from ..policies.acceptance import Acceptance
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

    Without them it can be checked and drawn, and no model is loaded. Of a model in stages it is
    that of all ranks together; with resources, those of one stage, that stage can be run.
    Raises `GraphError`.
    """
    own = _stage_of(resources)
    rule = None if resources is None else resources.get(ACCEPTANCE)
    stages = config.model.parallel.pipeline if own is None else own.count
    if stages == 1:
        return _of_stage(config, None, resources, rule)
    every = (Stage(index, stages) for index in range(stages))
    return all_stages(
        [_of_stage(config, each, resources if each == own else None, rule) for each in every],
        None if own is None else own.index,
    )


def _stage_of(resources: Resources | None) -> Stage | None:
    """The stage that runs in this process."""
    links = None if resources is None else resources.get(LINKS)
    return None if links is None else links.stage


def _of_stage(
    config: PipelineConfig,
    stage: Stage | None,
    resources: Resources | None,
    rule: Acceptance | None,
) -> StepGraph:
    refuse_messages(config.nodes)
    nodes = {name: _somewhere(config, node) for name, node in config.nodes.items()}
    return decode_step(
        nodes if stage is None else staged(nodes, stage, config.depth),
        depth=config.depth,
        max_rows=config.scheduler.max_rows,
        token_budget=config.scheduler.token_budget,
        everywhere=nodes,
        late=late(nodes, stage),
        acceptance=rule or _policy(config, "acceptance"),
        captured=config.captured,
        divided=config.model.parallel.tensor > 1,
        resources=resources,
        order=config.order,
    )


def compiled(config: PipelineConfig, resources: Resources | None = None) -> Plan:
    """The plan of `config`: of all ranks together, or with the resources of one stage, its part.

    Raises `GraphError`, or `DeadlockError` if no waits can order it.
    """
    whole = placed(config, step_graph(config, resources), config.costs)
    own = _stage_of(resources)
    return whole if own is None else parts(whole)[own.index]


def proved_digests(config: PipelineConfig) -> list[str]:
    """By rank, the digest of what it runs of the plan of all stages; none for a model in one piece.

    The plan that all of them make together is proved. Raises what `compiled` does, and
    `UnsoundPlan`.
    """
    whole = compiled(config)
    found = parts(whole)
    if found:
        verify(together(whole, found))
    return [part.digest for part in found]


def placed(
    config: PipelineConfig,
    graph: StepGraph,
    costs: Mapping[str, float],
    *,
    slots: Mapping[str, int] | None = None,
    costs_from: str | None = None,
) -> Plan:
    """The plan of the config's graph with these costs, each open node where they place it best.

    `slots`: None: those of the config. Raises `GraphError`.
    """

    if config.ranks > 1 and not graph.ranks:
        check_uniform(graph)  # every rank has the same graph: one is checked for all

    def compiled_with(each: StepGraph) -> Plan:
        pins = config.slots if slots is None else slots
        if graph.ranks:
            pins = {
                name: pins[declared_name(graph, name)]
                for name in graph.values
                if declared_name(graph, name) in pins
            }
        return compile_plan(
            each, costs=known, slots=pins, order=config.order, costs_from=costs_from
        )

    known = costs_of_stages(graph, costs) if graph.ranks else costs
    found = best_placed(graph, _open(config), compiled_with)
    if not graph.ranks:
        return found
    return replace(found, notes=(bubble(found, config.depth), *found.notes))


def _somewhere(config: PipelineConfig, node: NodeConfig) -> NodeConfig:
    """The node on the first thread that it may have."""
    return node.model_copy(update={"actor": config.actors[0]}) if node.actor == AUTO else node


def _open(config: PipelineConfig) -> dict[str, list[Where]]:
    """The nodes whose place the config leaves open, and where each may be, the usual place first.

    Raises `GraphError` for an unknown kind.
    """
    found: dict[str, list[Where]] = {}
    for name, node in config.nodes.items():
        if AUTO not in (node.actor, node.stream):
            continue
        made = kind(node.kind or name)
        actors = config.actors if node.actor == AUTO else (node.actor,)
        streams: tuple[str | None, ...] = (None,)
        if made.device:
            others = config.streams if node.stream == AUTO else ()
            first = made.stream if node.stream in (None, AUTO) else node.stream
            streams = tuple(dict.fromkeys((first, *others)))
        found[name] = [Where(*each) for each in product(actors, streams)]
    return found


def synchronous(config: PipelineConfig) -> PipelineConfig:
    """The same pipeline as the plain serial loop, on the same device and on one rank: what every
    run must equal.
    """
    alone = ParallelConfig()
    model = config.model.model_copy(update={"device": config.device, "parallel": alone})
    plain = {"depth": 1, "executor": "serial", "graphs": False, "model": model}
    return config.model_copy(update=plain)
