"""On several ranks all that decides a step is the same on each: the declared nodes say so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.errors import GraphError
from stepweave.graph.planner.uniform import check_uniform, divergences
from stepweave.graph.step_graph import StepGraph
from stepweave.serving.pipeline import compiled, step_graph

SHIPPED = (
    "async",
    "async_speculation",
    "async_eagle",
    "async_ngram",
    "async_eagle3_grammar",
    "grammar_worker",
    "drafter_stream",
)


def on_two_ranks(name: str, **more: Any) -> PipelineConfig:
    config = load_config(name, {"model.parallel.tensor": 2, **more})
    assert isinstance(config, PipelineConfig)
    return config


def without_agreement(graph: StepGraph, node: str) -> StepGraph:
    """The graph in which that node does not agree."""

    def own(ops: Any) -> Any:
        return tuple(replace(op, agrees=False) for op in ops)

    nodes = [
        replace(each, host=own(each.host), device=own(each.device)) if each.name == node else each
        for each in graph.nodes
    ]
    return StepGraph.build(nodes, graph.values.values(), graph.states.values(), name=graph.name)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_pipeline_decides_alike_on_all_ranks(name: str) -> None:
    for depth in (1, 2, 3):
        graph = step_graph(on_two_ranks(name, depth=depth))
        assert divergences(graph) == []


@pytest.mark.parametrize(
    ("node", "begin", "end"),
    [
        ("sample", ("logits", "sample.device", "progress"), "prepare_inputs.device"),
        ("draft", ("hidden", "draft.device", "drafts"), "prepare_inputs.device"),
    ],
)
def test_a_step_without_one_of_its_agreements_is_refused_with_the_path(
    node: str, begin: tuple[str, ...], end: str
) -> None:
    graph = step_graph(on_two_ranks("async_eagle3_grammar"))
    check_uniform(graph)
    with pytest.raises(GraphError) as refused:
        check_uniform(without_agreement(graph, node))
    assert refused.value.code == "SW-OWN"
    assert " → ".join((*begin, end)) in f"{refused.value}"


def test_what_is_sampled_would_reach_what_requests_get() -> None:
    graph = without_agreement(step_graph(on_two_ranks("async")), "sample")
    decided = {each.path[-1]: each.path for each in divergences(graph) if each.decides}
    assert decided["commit.host.advance"] == (
        "logits",
        "sample.device",
        "sampled",
        "d2h_copy.device",
        "host_sampled",
        "commit.host.advance",
    )


def test_a_plan_for_ranks_is_refused_where_a_node_does_not_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stepweave.serving import pipeline

    built: Callable[..., StepGraph] = pipeline.step_graph
    monkeypatch.setattr(
        pipeline, "step_graph", lambda *given: without_agreement(built(*given), "sample")
    )
    with pytest.raises(GraphError, match=r"logits → sample\.device"):
        compiled(on_two_ranks("async"))
    alone = load_config("async")
    assert isinstance(alone, PipelineConfig)
    compiled(alone)
