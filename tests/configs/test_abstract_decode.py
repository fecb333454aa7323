"""The abstract example and the shipped pipeline that it shows."""

from __future__ import annotations

from stepweave.cli.planned import planned
from stepweave.graph.plan import Plan
from tests.graph.build import waits

ABSTRACT, SHIPPED = planned("abstract_decode"), planned("async_eagle3_grammar")


def flow(plan: Plan) -> set[tuple[str, str, int]]:
    """Which node reads what which other node has written, how many steps back."""
    nodes = {name: vertex.node.name for name, vertex in plan.graph.vertices.items()}
    return {
        (nodes[edge.source], nodes[edge.target], edge.carry)
        for edge in plan.edges
        if edge.hazard == "RAW" and nodes[edge.source] != nodes[edge.target]
    }


def test_they_have_the_same_waits_and_run_in_the_same_order() -> None:
    assert waits(ABSTRACT) == waits(SHIPPED)
    programs = [
        {
            actor: [(plan.graph.vertices[op].node.name, offset) for op, offset in program]
            for actor, program in plan.actors.items()
        }
        for plan in (ABSTRACT, SHIPPED)
    ]
    assert programs[0] == programs[1]


def test_their_data_flow_differs_only_where_the_abstract_one_says_that_it_is_simpler() -> None:
    launches = {("schedule", node, 0) for node in ("forward", "sample", "draft", "d2h_copy")}
    through_rows = {("draft", "prepare_inputs", 0), ("draft", "sample", 0)}
    drafts = {("draft", "sample", 1)}  # the shipped one reads them as inputs of the step
    assert flow(ABSTRACT) - flow(SHIPPED) == launches | through_rows | drafts
    assert flow(SHIPPED) - flow(ABSTRACT) == {
        ("draft", "prepare_inputs", 1),
        ("sample", "prepare_inputs", 1),  # `progress`: last tokens and numbers computed
    }
