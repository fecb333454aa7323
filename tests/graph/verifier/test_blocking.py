"""The blocking simulator, and that it agrees with the planner on which programs never end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from stepweave.graph.errors import DeadlockError, GraphError
from stepweave.graph.node import Comm, Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.channels import with_capacities
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import listing_programs, with_streams
from stepweave.graph.ranks import Ranked, ranked_graph
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.blocking import run_blocking
from stepweave.graph.verifier.verify import violations
from stepweave.testing.ranked_graphs import random_ranked_graph
from tests.graph.ranked import collective, message, pipeline

SAMPLE, ALL = 150, 4000


def unplanned(graph: StepGraph) -> Plan:
    """The listed programs alone: no wait, no proof."""
    actors = with_streams(graph, listing_programs(graph))
    return Plan(graph, actors, (), (), (), {}, 0.0, ())


def planners(graph: StepGraph) -> str:
    try:
        compile_plan(graph)
    except GraphError as error:
        return error.code
    return ""


def agree(seeds: range) -> Counter[str]:
    """Both verdicts on each of some random graphs; how often which was given."""
    given: Counter[str] = Counter()
    for seed in seeds:
        graph = random_ranked_graph(Random(f"ranked/{seed}"))
        said, run = planners(graph), run_blocking(unplanned(graph))
        given[said] += 1
        assert bool(said) == bool(run), f"seed {seed}: planner {said or 'sound'}, run {run}"
        if run is not None and said != "SW-MATCH":
            assert run.code == "SW-DEADLOCK", seed
    return given


def sound_plans(seeds: range) -> list[tuple[int, Plan]]:
    found = []
    for seed in seeds:
        graph = random_ranked_graph(Random(f"ranked/{seed}"))
        if not planners(graph):
            found.append((seed, compile_plan(graph)))
    return found


def changed(graph: StepGraph, name: str, **comm: object) -> StepGraph:
    """The graph with another comm at one end of a comm node."""
    return replace(
        graph,
        nodes=tuple(
            replace(node, comm=replace(node.comm, **comm)) if node.name == name else node  # type: ignore[type-var]
            for node in graph.nodes
        ),
    )


def without(plan: Plan, name: str) -> Plan:
    """The plan with one end of a comm node dropped."""
    graph = replace(plan.graph, nodes=tuple(n for n in plan.graph.nodes if n.name != name))
    actors = {
        actor: tuple(placed for placed in program if placed[0] in graph.vertices)
        for actor, program in plan.actors.items()
    }
    return replace(
        plan,
        graph=graph,
        actors={actor: program for actor, program in actors.items() if program},
        waits=tuple(w for w in plan.waits if {w.source, w.target} <= graph.vertices.keys()),
        edges=(),
        launch_order=(),
    )


def swapped(graph: StepGraph, first: int, then: int) -> StepGraph:
    """The graph with two nodes of one rank in each other's place, each with its own offset."""
    nodes = list(graph.nodes)
    nodes[first], nodes[then] = nodes[then], nodes[first]
    return replace(graph, nodes=tuple(nodes))


def verifiers(plan: Plan) -> list[str]:
    """What the verifier says of the order of things; not of what the plan says of itself."""
    return [each.code for each in violations(plan) if each.code != "SW-WITNESS"]


def test_every_comm_node_that_is_dropped_or_resized_at_one_end_is_killed_by_both() -> None:
    killed = 0
    for seed, plan in sound_plans(range(40)):
        for node in plan.graph.nodes:
            if node.comm is None:
                continue
            lost = without(plan, node.name)
            assert planners(lost.graph) == "SW-MATCH", (seed, node.name)
            assert "SW-MATCH" in verifiers(lost), (seed, node.name)
            for change in ({"nbytes": 4}, {"capacity": 7}, {"members": (0, 1, 2, 3, 4)}):
                other = changed(plan.graph, node.name, **change)
                assert planners(other) in ("SW-MATCH", "SW-RANK"), (seed, node.name, change)
                assert "SW-MATCH" in verifiers(replace(plan, graph=other)), (seed, node.name)
            killed += 4
    assert killed > 200


def test_comm_nodes_that_are_swapped_on_one_rank_are_killed_by_both_or_by_neither() -> None:
    given: Counter[bool] = Counter()
    for seed, plan in sound_plans(range(40)):
        graph, nodes = plan.graph, plan.graph.nodes
        for first, then in combinations(range(len(nodes)), 2):
            both = nodes[first], nodes[then]
            if both[0].rank != both[1].rank or not all(node.comm for node in both):
                continue
            mutant = swapped(graph, first, then)
            said = planners(mutant)
            kept = replace(unplanned(mutant), waits=plan.waits, slots=plan.slots)
            turned = kept if said else compile_plan(mutant)
            assert bool(said) == bool(verifiers(turned)), (seed, both[0].name, both[1].name, said)
            given[bool(said)] += 1
    assert given[True] > 10
    assert given[False] > 5


def test_on_one_thread_and_communicator_no_swap_survives() -> None:
    nodes = [collective("x", (0, 1)), message("y", (0, 1), on="world"), collective("z", (0, 1))]
    plan = compile_plan(ranked_graph(nodes, (), ranks=2, order="keep"))
    assert not violations(plan)
    for first, then in ((0, 2), (2, 4), (0, 4)):
        mutant = swapped(plan.graph, first, then)
        assert planners(mutant) == "SW-MATCH"
        assert "SW-MATCH" in verifiers(unplanned(mutant))


def test_less_than_a_channel_must_hold_is_killed_by_both() -> None:
    for groups in (2, 3):
        plan = compile_plan(pipeline((100.0, 100.0), groups, comm_us=5.0))
        assert not violations(plan)
        few = with_capacities(plan.graph, {"feedback": groups - 2})
        assert planners(few) == "SW-CHANNEL"
        assert "SW-DEADLOCK" in verifiers(replace(plan, graph=few))


def test_a_run_that_sticks_says_which_rank_waits_where_for_whom() -> None:
    nodes = [message("a", (0, 1)), message("b", (1, 0))]
    graph = ranked_graph(nodes, (), ranks=2, listing={1: ["b", "a"]}, order="keep")
    blocked = run_blocking(unplanned(graph))
    assert blocked is not None
    assert blocked.message.splitlines()[1:] == [
        "  rank 0: a@0.host.leave of step 0 waits for a@1.host.enter of step 0",
        "  rank 1: b@1.host.leave of step 0 waits for b@0.host.enter of step 0",
    ]


def test_planner_and_blocking_run_agree_on_random_ranked_programs() -> None:
    given = agree(range(SAMPLE))
    assert given[""] > SAMPLE // 5
    assert given["SW-DEADLOCK"] + given["SW-CHANNEL"] > SAMPLE // 4
    assert given["SW-MATCH"] > 5
    assert given["SW-CHANNEL"] > 5


@pytest.mark.nightly
def test_planner_and_blocking_run_agree_on_thousands_of_random_ranked_programs() -> None:
    given = agree(range(SAMPLE, ALL))
    assert sum(given.values()) >= 3000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_actor_that_nobody_holds_up_ends(ranks: int) -> None:
    alone = [Ranked(Node("work", (Op(cost_us=5.0),)), ranks=(0,))]
    plan = compile_plan(ranked_graph(alone, [], ranks=ranks))
    assert run_blocking(plan) is None
    assert violations(plan) == []


def test_a_channel_to_be_sized_is_not_blamed_for_a_cycle_without_it() -> None:
    reader = Node("first", (Op((Read("a"),), cost_us=5.0),))
    nodes = [
        Ranked(reader, ranks=(0,)),
        Ranked(Node("second", (Op(writes=("a",), cost_us=5.0),)), ranks=(0,)),
        Ranked(Node("make", (Op(writes=("x",), cost_us=5.0),)), ranks=(0,)),
        Ranked(
            Node("send", (Op((Read("x"),), ("y",), cost_us=5.0),)),
            comm=Comm("send", "message", (0, 1), "world", None),
        ),
    ]
    graph = ranked_graph(nodes, [Value(name) for name in "axy"], ranks=2, order="keep")
    with pytest.raises(DeadlockError, match=r"first@0.host → \(d=0, order\) second@0.host"):
        compile_plan(graph)
