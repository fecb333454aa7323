"""The simulated executor: exact times, the plan's period, and why each op starts when it does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from stepweave.executors import StuckWait
from stepweave.graph.errors import GraphError, StepweaveError
from stepweave.graph.node import Node, Op, Read, Storage, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.graphs import random_step_graph
from stepweave.timelines import simulated
from stepweave.timelines.simulated import Clock, Turn, program_of, simulate
from stepweave.timelines.timeline import Span, Timeline


def decode(latency: float | None = None, offset: int = 0) -> Plan:
    """Host 30 µs, forward 100 µs, copy 20 µs; `offset` 1 pipelines it."""

    def op(cost: float, *reads: Read, writes: tuple[str, ...] = ()) -> Op:
        return Op(reads, writes, cost_us=cost)

    slots: Storage = "slots"
    nodes = [
        Node("schedule", (op(30, Read("text", 1 + offset), writes=("batch",)),)),
        Node(
            "forward",
            (op(5, Read("batch")),),
            (op(100, Read("sampled", 1), writes=("sampled",)),),
            stream="compute",
            launch_latency_us=latency,
        ),
        Node(
            "copy",
            (op(2),),
            (op(20, Read("sampled"), writes=("copied",)),),
            stream="copy",
        ),
        Node("commit", (op(10, Read("copied"), writes=("text",)),), offset=offset),
    ]
    values = [
        Value("batch"),
        Value("text"),
        Value("sampled", "device", slots),
        Value("copied", "pinned", slots),
    ]
    return compile_plan(StepGraph.build(nodes, values, order="keep"))


def test_one_step_takes_the_sum_of_what_is_in_a_row() -> None:
    timeline = simulate(decode(), steps=1)
    times = {span.op: (span.start_us, span.end_us) for span in timeline.events}
    assert times == {
        "schedule.host": (0, 30),
        "forward.host": (30, 35),
        "forward.device": (35, 135),
        "copy.host": (35, 37),
        "copy.device": (135, 155),
        "commit.host": (155, 165),
    }


def test_the_pipelined_step_is_bound_by_the_device_alone() -> None:
    synchronous, pipelined = decode(), decode(offset=1)
    assert simulate(synchronous, steps=30).period_us == synchronous.period_us == 165
    timeline = simulate(pipelined, steps=30)
    assert timeline.period_us == pipelined.period_us == 100
    assert timeline.gap_us("compute") == 0
    assert simulate(synchronous, steps=30).gap_us("compute") == pytest.approx(65, rel=0.1)
    assert {span.actor for span in timeline.critical_path()[-25:-5]} == {"compute"}


def test_a_launch_with_latency_lets_the_device_start_before_it_ends() -> None:
    early = simulate(decode(latency=3), steps=1)
    assert early.span("forward.device", 0).start_us == 33
    slow = simulate(decode(latency=3), steps=1, costs={"forward.host": 500})
    forward = slow.span("forward.device", 0)
    assert (forward.start_us, forward.end_us) == (33, 530)  # not before its launch has ended
    assert forward.held is not None
    assert (forward.held.op, forward.held.by) == ("forward.host", "launch")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("latency", [False, True])
def test_the_period_of_the_timeline_is_the_period_of_the_plan(latency: bool) -> None:
    compared = 0
    for seed in range(80):
        graph, random = random_step_graph(seed), Random(seed)
        if latency:
            nodes = [
                replace(node, launch_latency_us=float(random.choice([0, 2, 7])))
                if node.device
                else node
                for node in graph.nodes
            ]
            graph = replace(graph, nodes=tuple(nodes))
        try:
            plan = compile_plan(graph)
        except GraphError:
            continue
        found = simulate(plan, steps=120).period_us
        assert found == pytest.approx(plan.period_us, rel=1e-9), f"seed {seed}"
        compared += 1
    assert compared >= 40


def test_timelines_keep_every_order_of_the_plan() -> None:
    for seed in range(60):
        try:
            plan = compile_plan(random_step_graph(seed))
        except GraphError:
            continue
        timeline = simulate(plan, steps=6, seed=seed, jitter=0.5)
        assert len(timeline.events) == 6 * len(plan.graph.vertices)
        for wait in plan.waits:
            for step in range(6):
                if 0 <= step + wait.distance < 6:
                    source = timeline.span(wait.source, step)
                    target = timeline.span(wait.target, step + wait.distance)
                    assert source.end_us <= target.start_us, f"seed {seed}: {wait}"
        for actor in plan.actors:
            spans = timeline.on(actor)
            assert all(a.end_us <= b.start_us for a, b in pairwise(spans))


def test_each_op_starts_when_what_held_it_ended() -> None:
    timeline = simulate(decode(offset=1), steps=8)
    for span in timeline.events:
        if span.held is not None and span.held.step >= 0:
            assert timeline.span(span.held.op, span.held.step).end_us == span.start_us
    path = timeline.critical_path()
    assert path[0].start_us == 0
    assert all(a.end_us == b.start_us for a, b in pairwise(path))


def test_jitter_is_reproducible_and_bounded() -> None:
    plan = decode(offset=1)

    def jittered(seed: int) -> Timeline:
        return simulate(plan, steps=50, seed=seed, jitter=0.1)

    assert jittered(1) == jittered(1) != jittered(2)
    assert jittered(1).period_us == pytest.approx(100, rel=0.05)
    assert simulate(plan, steps=50, seed=3) == simulate(plan, steps=50)


def test_costs_answer_what_if() -> None:
    plan = decode(offset=1)
    assert simulate(plan, steps=40, costs={"forward.device": 10}).period_us < 60
    with pytest.raises(StepweaveError, match=r"did you mean 'forward.device'"):
        simulate(plan, steps=1, costs={"forward.devise": 1})


def test_ops_may_take_their_time_turn_by_turn() -> None:
    plan = decode(offset=1)
    turns: list[Turn] = []

    def takes(turn: Turn) -> float:
        turns.append(turn)
        return turn.cost_us + 400 * (turn.op == "forward.device" and turn.step == 3)

    timeline = simulate(plan, steps=8, takes=takes)
    plain = simulate(plan, steps=8)
    for op in plan.graph.vertices:
        assert timeline.span(op, 2).end_us == plain.span(op, 2).end_us
        assert timeline.span(op, 7).end_us == plain.span(op, 7).end_us + 400
    assert len(turns) == len(timeline.events)
    for turn in turns:
        assert timeline.span(turn.op, turn.step).start_us == turn.start_us >= turn.free_us
    for actor in plan.actors:
        mine = [(t.op, t.step) for t in turns if plan.graph.vertices[t.op].actor == actor]
        assert mine == [(span.op, span.step) for span in timeline.on(actor)]


def test_a_turn_tells_how_long_its_waits_took() -> None:
    waited: dict[int, float] = {}

    def takes(turn: Turn) -> float:
        if turn.op == "commit.host":
            waited[turn.step] = turn.start_us - turn.free_us
        return turn.cost_us

    simulate(decode(), steps=3, takes=takes)
    assert waited == {0: 118, 1: 118, 2: 118}, "from the launch of the copy to its end"


def test_a_deadlock_is_found_at_once() -> None:
    nodes = [Node("a", actor="left"), Node("b", actor="right")]
    plan = compile_plan(StepGraph.build(nodes, []))
    stuck = replace(plan, waits=(Wait("a.host", "b.host", 0), Wait("b.host", "a.host", 0)))
    with pytest.raises(StuckWait, match=r"left: waits, for 'a.host' of step 0"):
        simulate(stuck, steps=2)


def test_an_empty_run_has_an_empty_timeline() -> None:
    timeline = simulate(decode(), steps=0)
    assert timeline.events == ()
    assert timeline.critical_path() == ()
    assert timeline.gap_us("compute") == 0


def test_spans_that_are_handed_on_are_those_that_are_kept_and_old_steps_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulated, "_REMEMBERED", 16)
    plan, seen = decode(), list[Span]()
    clock = Clock(
        plan, program_of(plan, False), 200, plan.costs, Random(0), 0.0, None, seen=seen.append
    )
    clock.run()
    kept = simulate(plan, steps=200)
    assert sorted(seen) == sorted(kept.events)
    assert clock.spans == []
    assert all(len(steps) <= 17 for steps in (*clock.starts.values(), *clock.ends.values()))


@pytest.mark.parametrize("steps", [4, 10, 40])
def test_the_gap_of_an_actor_is_what_it_does_not_work_of_a_period(steps: int) -> None:
    nodes = [
        Node("a", (Op(cost_us=90.0),), (Op(cost_us=10.0),), actor="h", stream="g"),
        Node("b", (Op(cost_us=10.0),), actor="h"),
    ]
    timeline = simulate(compile_plan(StepGraph.build(nodes, [])), steps=steps)
    assert timeline.period_us == pytest.approx(100)
    assert timeline.gap_us("g") == pytest.approx(90)
