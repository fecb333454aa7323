"""Why a wait exists: against the verifier's own derivation, for every wait that is shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given

from stepweave.graph.answers.explain import Reason, WaitExplanation, explain_wait
from stepweave.graph.node import Node, Op, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph, Vertex
from stepweave.graph.verifier.firings import needs_of
from stepweave.graph.verifier.order import Distances, Need, arcs_of
from tests.graph.pipelines import decode, device_node, reads
from tests.graph.shipped_plans import SHIPPED, shipped_plan
from tests.graph.strategies import examples, plans

Said = tuple[str, str, str, str, int]  # hazard, value, before, after, distance


def without(plan: Plan, wait: Wait) -> Plan:
    return replace(plan, waits=tuple(each for each in plan.waits if each != wait))


def goal(plan: Plan, need: Need) -> str:
    """Host work reaches a device op through the op that launches it."""
    ops = plan.graph.vertices
    launch = ops[need.after].launch
    return launch if launch and ops[need.before].side == "host" else need.after


def distances(plan: Plan) -> Distances:
    return Distances(list(plan.graph.vertices), arcs_of(plan))


def met(plan: Plan, need: Need, found: Distances) -> bool:
    end = goal(plan, need)
    if end == need.before != need.after and need.distance >= 0:
        return True
    return found.ordered(need.before, end, need.distance)


def key(need: Need) -> Said:
    return need.hazard, need.value, need.before, need.after, need.distance


def said(explanation: Sequence[object]) -> set[Said]:
    edges = [reason.edge for reason in explanation]  # type: ignore[attr-defined]
    return {(e.hazard, e.value, e.source, e.target, e.distance) for e in edges if e.value}


def accesses(vertex: Vertex, state: str) -> str:
    reads = any(read.name == state for read in vertex.op.reads)
    return "R" * reads + "W" * (state in vertex.op.writes)


def meetings(plan: Plan) -> Iterator[Need]:
    """Every two accesses of one key, one of them a write, when a lease has just been kept."""
    for lease in plan.leases:
        users: dict[str, list[tuple[str, str]]] = {}
        for name, vertex in plan.graph.vertices.items():
            if letters := accesses(vertex, lease.state):
                users.setdefault(vertex.op.class_of(lease.state), []).append((name, letters))
        for before, wrote in users[lease.source]:
            for after, writes in users[lease.target]:
                if "W" in wrote + writes:
                    yield Need("LEASE", lease.state, 0, before, after, lease.steps)


def unguarded(plan: Plan, wait: Wait) -> set[tuple[str, str, str]]:
    """Accesses of the wait's own two ops that meet on a key without it, though the lease is kept.

    Other users of the key that meet then do so by way of these.
    """
    absent = distances(without(plan, wait))
    return {
        (need.value, need.before, need.after)
        for need in meetings(plan)
        if (need.before, goal(plan, need)) == (wait.source, wait.target)
        and not met(plan, need, absent)
    }


def check_keys(plan: Plan, wait: Wait, leases: Sequence[Reason], present: Distances) -> None:
    """What is said of keys, against the leases that the plan states."""
    assert {(r.edge.value, r.edge.source, r.edge.target) for r in leases} == unguarded(plan, wait)
    for edge in (reason.edge for reason in leases):
        assert present(edge.source, edge.target) == edge.distance
        (stated,) = (
            need.distance
            for need in meetings(plan)
            if (need.value, need.before, need.after) == (edge.value, edge.source, edge.target)
        )
        assert edge.distance <= stated


def explanations(plan: Plan) -> list[WaitExplanation]:
    return [explain_wait(plan, wait) for wait in plan.waits]


def check(plan: Plan) -> None:
    """Everything an explanation claims of orders, recomputed with the verifier's distances."""
    present = distances(plan)
    for each in explanations(plan):
        wait, left = each.wait, without(plan, each.wait)
        absent = distances(left)
        broken = {key(need) for need in needs_of(plan) if not met(plan, need, absent)}
        leases = [reason for reason in each.protects if reason.edge.hazard == "LEASE"]
        assert said([reason for reason in each.protects if reason not in leases]) == broken
        check_keys(plan, wait, leases, present)
        assert {
            (r.edge.hazard, r.edge.value, r.edge.source, r.edge.target) for r in each.protects
        } == {(p.hazard, p.value, p.before, p.after) for p in wait.protects}
        assert each.protects, "a wait that protects nothing is not minimal"
        also = {
            key(need)
            for need in needs_of(plan)
            if key(need) not in broken and goes_through(plan, wait, need, present)
        }
        assert said(each.also) == also
        arcs = set(arcs_of(left))
        for reason in each.also:
            assert_path(reason.path, arcs, reason.edge.source, reason.edge.target)
            assert reason.path[-1][1] <= reason.edge.distance


def goes_through(plan: Plan, wait: Wait, need: Need, found: Distances) -> bool:
    end = goal(plan, need)
    first = 0 if need.before == wait.source else found(need.before, wait.source)
    last = 0 if end == wait.target else found(wait.target, end)
    if first is None or last is None:
        return False
    return first + wait.distance + last <= need.distance


def assert_path(
    path: Sequence[tuple[str, int]], arcs: set[tuple[str, str, int]], source: str, target: str
) -> None:
    assert path[0] == (source, 0)
    assert path[-1][0] == target
    for (u, before), (v, after) in pairwise(path):
        assert (u, v, after - before) in arcs, (u, v, after - before)


@pytest.mark.parametrize(("name", "depth"), SHIPPED)
def test_every_wait_that_is_shipped_is_explained_truly(name: str, depth: int | None) -> None:
    check(shipped_plan(name, depth))


@examples(30)
@given(plans())
def test_every_wait_of_any_plan_is_explained_truly(plan: Plan) -> None:
    check(plan)


@pytest.mark.parametrize(("name", "depth"), SHIPPED)
def test_every_reason_names_both_ops_their_actors_and_the_value(
    name: str, depth: int | None
) -> None:
    plan = shipped_plan(name, depth)
    for each in explanations(plan):
        for reason in each.protects:
            edge = reason.edge
            for word in (edge.source, edge.target, edge.from_stream, edge.to_stream):
                assert word in reason.needed
            assert edge.value in reason.needed
            assert f" {edge.target if edge.hazard != 'WAW' else edge.value} " in (
                f" {reason.without} "
            )
        assert each.wait.source in each.realized
        json.dumps(each.to_json())


@pytest.mark.parametrize(("name", "depth"), SHIPPED)
def test_a_wait_that_costs_time_lies_on_the_critical_cycle(name: str, depth: int | None) -> None:
    plan = shipped_plan(name, depth)
    for each in explanations(plan):
        assert each.period_without_us <= each.period_us == plan.step_us
        if each.period_without_us < each.period_us:
            assert each.critical


def slowest(plan: Plan) -> Fraction:
    """The period by trying every simple cycle."""
    graph = nx.MultiDiGraph()
    for u, v, d in arcs_of(plan):
        graph.add_edge(u, v, d=d)
    best = Fraction(0)
    for cycle in nx.simple_cycles(nx.DiGraph(graph)):
        ends = [*cycle[1:], cycle[0]]
        steps = [
            min(e["d"] for e in graph[u][v].values()) for u, v in zip(cycle, ends, strict=True)
        ]
        best = max(best, Fraction(sum(Fraction(plan.costs[op]) for op in cycle)) / sum(steps))
    return best


def test_the_cost_of_a_wait_is_that_of_the_slowest_cycle_without_it() -> None:
    plan = shipped_plan("drafter_stream", None)
    found = explanations(plan)
    assert {each.period_us - each.period_without_us for each in found} == {0, 70}
    for each in found:
        assert each.period_without_us == slowest(without(plan, each.wait))
        assert ("nothing" in each.cost) == (each.period_without_us == each.period_us)


def test_reads_and_versions_are_said_in_words() -> None:
    plan = compile_plan(decode(staging_slots=1))
    by_ends = {(each.wait.source, each.wait.target): each for each in explanations(plan)}
    copied = by_ends["forward.device", "d2h_copy.device"]
    (raw,) = [r for r in copied.protects if r.edge.hazard == "RAW"]
    assert raw.needed == (
        "forward.device of step i on compute writes sampled; "
        "d2h_copy.device of step i on copy reads this version."
    )
    assert raw.without == (
        "d2h_copy.device of step i could read sampled of step i before forward.device has "
        "written it: its slot would still hold version i-2."
    )
    staged = by_ends["prepare.device", "prepare.host"]
    (war,) = staged.protects
    assert war.needed.endswith(
        "prepare.host of step i+1 on driver writes version i+1 to the slot of version i (1 slot)."
    )
    assert war.without == (
        "prepare.host of step i+1 could overwrite staging of step i while prepare.device of "
        "step i still reads it, which would then see data of step i+1."
    )
    assert copied.realized == (
        "stream compute records an event after forward.device; before d2h_copy.device, "
        "stream copy waits for that of the same step."
    )


def test_a_carried_read_names_the_version() -> None:
    plan = shipped_plan("drafter_stream", None)
    (back,) = [e for e in explanations(plan) if e.wait.distance == 1]
    (raw,) = [r for r in back.protects if r.edge.value == "drafts"]
    assert raw.title == "RAW drafts@-1"
    assert "prepare_inputs.device of step i+1 on compute reads this version (drafts@-1)" in (
        raw.needed
    )


def test_a_fresh_value_that_is_not_there_yet_is_nothing() -> None:
    graph = StepGraph.build(
        [
            Node("a", (Op((), ("x",)),)),
            Node("b", (Op(reads("x"), ()),), actor="other"),
        ],
        [Value("x")],
        order="keep",
    )
    plan = compile_plan(graph)
    each, _ = explanations(plan)
    assert each.protects[0].without.endswith("has written it: there would be nothing yet.")
    assert each.realized.startswith("host thread driver records")


def test_launch_order_is_explained_by_the_stream_it_is_for() -> None:
    plan = shipped_plan("grammar_worker", None)
    launches = [
        r for each in explanations(plan) for r in each.protects if r.edge.hazard == "LAUNCH"
    ]
    assert {r.title for r in launches} == {"launch order"}
    texts = [r.without for r in launches]
    assert any("in the order of the launches, would run bitmask before sample" in t for t in texts)
    vertices = plan.graph.vertices
    for reason in launches:
        ends = (reason.edge.source, reason.edge.target)
        assert len({vertices[op].node.stream for op in ends}) == 1


def test_events_of_streams_that_are_not_recorded_yet() -> None:
    graph = StepGraph.build(
        [
            device_node("a", "one", writes=("x",)),
            device_node("b", "two", reads=reads("x"), actor="other"),
        ],
        [Value("x", "device", "slots", 2)],
        order="keep",
    )
    plan = compile_plan(graph)
    reasons = [r for e in explanations(plan) for r in e.protects if r.edge.hazard == "LAUNCH"]
    assert any("an event of one that is not recorded yet" in r.without for r in reasons)


def test_a_wait_that_the_plan_has_not_is_refused() -> None:
    plan = compile_plan(decode())
    with pytest.raises(ValueError, match="not in tuple"):
        explain_wait(plan, Wait("a", "b", 0))


def test_lines_are_sentences_and_say_all() -> None:
    plan = shipped_plan("drafter_stream", None)
    for each in explanations(plan):
        lines = each.lines()
        assert lines[0] == each.headline
        assert all(line.endswith(".") for line in lines)
        text = "\n".join(lines)
        assert all(reason.title in text for reason in (*each.protects, *each.incidental))
