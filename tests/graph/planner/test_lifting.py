"""One rank's plan is that of any number of equal ranks; and of a plan, the part of one rank."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from stepweave.graph.errors import GraphError
from stepweave.graph.node import Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import comm_edges, plan_edges
from stepweave.graph.planner.lifting import one_of_equal_ranks
from stepweave.graph.planner.paths import HOP, adjacency, closure, reachable
from stepweave.graph.planner.period import op_costs
from stepweave.graph.planner.projection import project, together
from stepweave.graph.ranks import Ranked, at_rank, declared_name, part_of, ranked_graph
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from tests.graph.build import device, host, op, value
from tests.graph.ranked import collective, pipeline

EQUAL = 20


def equal_ranks(random: Random, ranks: int) -> StepGraph:
    """A decode step of so many equal ranks that agree on their tokens."""
    members = tuple(range(ranks))
    cost = [float(random.randint(1, 50)) for _ in range(5)]
    stream = random.choice(("compute", "side"))
    nodes = [
        Ranked(host("schedule", op("requests", "batch requests", cost[0]))),
        Ranked(
            device("forward", op("batch", "staging"), op("staging tokens@-1", "logits", cost[1]))
        ),
        collective("agree", members, stream=stream, part=op("logits", "tokens", cost[2])),
        Ranked(device("copy", op(), op("tokens", "host_tokens", cost[3]), stream="copy")),
        Ranked(
            host(
                "commit",
                op("host_tokens requests", "requests", cost[4]),
                offset=random.choice((0, 1)),
            )
        ),
    ]
    values = [
        value("batch"),
        value("staging", "pinned", random.choice((None, 1))),
        value("logits", "device"),
        value("tokens", "device"),
        value("host_tokens", "pinned"),
    ]
    graph = ranked_graph(nodes, values, ["requests"], ranks=ranks)
    return graph if random.random() < 0.3 else replace(graph, order="keep")


def distances(plan: Plan) -> dict[tuple[str, str], int]:
    """Every shortest distance of a plan, by the two ops."""
    names = list(plan.graph.vertices)
    index = {name: k for k, name in enumerate(names)}
    edges = [(index[u], index[v], d) for u, v, d, _ in plan_edges(plan)]
    paths = closure(adjacency(len(names), edges))
    there = reachable(paths)
    return {
        (u, v): int(paths[index[u], index[v]]) // HOP
        for u in names
        for v in names
        if there[index[u], index[v]]
    }


@pytest.mark.parametrize("seed", range(EQUAL))
def test_a_plan_of_one_rank_repeated_is_the_plan_of_all(seed: int) -> None:
    """Theorem C: distances within and between ranks are those of one rank, and so is the period."""
    random = Random(seed)
    ranks = random.randint(2, 4)
    graph = equal_ranks(random, ranks)
    plan = compile_plan(graph)
    verify(plan)
    one = compile_plan(part_of(graph, 0))
    assert (plan.period_us, len(plan.waits)) == (one.period_us, ranks * len(one.waits))
    own, all_of_them = distances(one), distances(plan)
    for (u, v), total in all_of_them.items():
        a, b = (name.replace(f"@{plan.graph.vertices[name].node.rank}", "@0") for name in (u, v))
        assert own[a, b] <= total, "a path between ranks is one of a single rank"
        if plan.graph.vertices[u].node.rank == plan.graph.vertices[v].node.rank:
            assert own[a, b] == total
    assert comm_edges(graph)
    assert not comm_edges(one.graph)


def test_planning_equal_ranks_costs_one_ranks_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    import stepweave.graph.planner.compile as module

    sizes = []
    original = module.plan_for

    def noted(graph: StepGraph, *arguments: object, **more: object) -> Plan:
        sizes.append(len(graph.vertices))
        return original(graph, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "plan_for", noted)
    plan = compile_plan(equal_ranks(Random(1), 8))
    assert sizes == [len(plan.graph.vertices) // 8]
    assert any("8 equal ones" in note for note in plan.notes)


def test_ranks_that_differ_in_anything_are_planned_as_they_are() -> None:
    graph = equal_ranks(Random(0), 2)
    costs = op_costs(graph)
    assert one_of_equal_ranks(graph, costs, {}) is not None
    assert one_of_equal_ranks(graph, {**costs, "schedule@1.host": 999.0}, {}) is None
    assert one_of_equal_ranks(graph, costs, {"tokens@0": 2}) is None
    later = tuple(replace(n, offset=3) if n.name == "commit@1" else n for n in graph.nodes)
    assert one_of_equal_ranks(replace(graph, nodes=later), costs, {}) is None
    values = {**graph.values, "tokens@1": replace(graph.values["tokens@1"], nbytes=8)}
    assert one_of_equal_ranks(replace(graph, values=values), costs, {}) is None
    assert one_of_equal_ranks(pipeline((1.0, 1.0), 2), {}, {}) is None
    slow = compile_plan(graph, costs={"schedule@1.host": 999.0})
    verify(slow)
    assert slow.period_us >= 999.0


def test_a_part_of_a_plan_is_a_sound_plan_in_the_order_of_the_whole() -> None:
    for plan in (
        compile_plan(equal_ranks(Random(3), 3)),
        compile_plan(pipeline((50.0, 40.0, 30.0), 3)),
    ):
        parts = [project(plan, rank) for rank in plan.graph.ranks]
        for rank, part in enumerate(parts):
            verify(part)
            assert {node.rank for node in part.graph.nodes} == {rank}
            assert not [name for name in part.graph.vertices if "@" in name]
            whole = {
                declared_name(plan.graph, actor): [
                    (declared_name(plan.graph, op), offset) for op, offset in program
                ]
                for actor, program in plan.actors.items()
                if plan.graph.vertices[program[0][0]].node.rank == rank
            }
            assert {actor: [*program] for actor, program in part.actors.items()} == whole
            assert all(plan.slots[at_rank(name, rank)] == k for name, k in part.slots.items())
        running = together(plan, parts)
        verify(running)
        assert {(w.source, w.target, w.distance) for w in plan.waits} <= {
            (w.source, w.target, w.distance) for w in running.waits
        }
    with pytest.raises(GraphError, match="there is no rank 7"):
        project(plan, 7)


def test_a_part_waits_for_what_the_whole_leaves_to_another_rank() -> None:
    """Rank 0 hears of its copy through rank 1 only: alone, it waits for it."""
    nodes = [
        Ranked(device("fill", op(), op("", "x"), stream="one"), (0,)),
        collective("there", (0, 1), stream="one"),
        collective("back", (0, 1), stream="two", on="other"),
        Ranked(device("use", op(), op("x", "y"), stream="two"), (0,)),
    ]
    values = [Value("x", "device", "slots"), Value("y", "device", "slots")]
    plan = compile_plan(ranked_graph(nodes, values, ranks=2, order="keep"))
    verify(plan)
    part = project(plan, 0)
    verify(part)
    assert len(part.waits) >= len([w for w in plan.waits if "@0" in w.source])
    verify(together(plan, [part, project(plan, 1)]))
