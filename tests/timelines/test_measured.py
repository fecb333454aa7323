"""Traced runs as timelines: what held each op, gaps, overlap and the cycle that repeats."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from time import sleep

import pytest

from stepweave.executors import OpEvent, RunReport, run
from stepweave.executors.recorder import overhead_us
from stepweave.graph.errors import GraphError, StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import plan_edges
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.graphs import random_step_graph
from stepweave.timelines.analysis import analyse, op_costs, step_lengths
from stepweave.timelines.critical import cycle
from stepweave.timelines.measured import measured, planned_beside, replayed_us
from stepweave.timelines.simulated import simulate
from stepweave.timelines.timeline import Span, Timeline
from tests.graph.pipelines import decode


def as_report(timeline: Timeline, shift_us: float = 0.0) -> RunReport:
    """The timeline as if a tracing executor had noted it."""
    events = tuple(
        OpEvent(
            span.op,
            span.step,
            span.actor,
            (span.start_us + shift_us) / 1e6,
            (span.end_us + shift_us) / 1e6,
        )
        for span in timeline.events
    )
    return RunReport(steps=timeline.steps, events=events, seconds=timeline.seconds)


def pipelined() -> Plan:
    return compile_plan(decode())


@pytest.mark.parametrize("serial", [False, True])
def test_a_simulated_run_that_is_noted_comes_back_the_same(serial: bool) -> None:
    compared = 0
    for seed in range(60):
        try:
            plan = compile_plan(random_step_graph(seed))
        except GraphError:
            continue
        expected = simulate(plan, steps=12, seed=seed, jitter=0.4, serial=serial)
        rounded = {
            (s.op, s.step): (round(s.start_us, 3), round(s.end_us, 3)) for s in expected.events
        }
        found = measured(plan, as_report(expected), serial=serial)
        assert {(s.op, s.step): (s.start_us, s.end_us) for s in found.events} == rounded
        for span in expected.events:
            assert found.span(span.op, span.step).held == span.held, f"seed {seed}: {span}"
        for actor in plan.actors:
            gaps = [(g.before.op, g.after.op, g.held) for g in expected.gaps(actor) if g.us > 0.01]
            again = [(g.before.op, g.after.op, g.held) for g in found.gaps(actor) if g.us > 0.01]
            assert again == gaps, f"seed {seed}"
        assert max((span.late_us for span in found.events), default=0.0) <= 0.002
        compared += 1
    assert compared >= 30


def test_what_held_an_op_is_the_last_of_its_predecessors_to_end() -> None:
    plan = pipelined()
    timeline = measured(plan, as_report(simulate(plan, steps=20, seed=3, jitter=0.9)))
    kinds = set()
    for span in timeline.events:
        if span.step < 3:
            continue  # some of what these come after is skipped
        before = [
            (timeline.span(u, span.step - d).end_us, u, span.step - d, kind)
            for u, v, d, kind in plan_edges(plan)
            if v == span.op and span.step - d < 20
        ]
        assert span.held is not None
        held = (span.held.op, span.held.step, span.held.by)
        assert held in [each[1:] for each in before]
        assert timeline.span(*held[:2]).end_us == max(before)[0]
        kinds.add(span.held.by)
    assert kinds == {"order", "launch", "wait"}


def test_a_gap_is_named_by_its_cause_and_split_into_wait_and_hand_over() -> None:
    plan = pipelined()
    late = as_report(simulate(plan, steps=20))
    slow = tuple(
        event._replace(start_s=event.start_s + 40e-6, end_s=event.end_s + 40e-6)
        if event.op == "commit.host"
        else event
        for event in late.events
    )
    timeline = measured(plan, replace(late, events=slow))
    gap = next(
        g for g in timeline.gaps("driver") if g.after.op == "commit.host" and g.after.step > 4
    )
    assert gap.held is not None
    assert (gap.held.op, gap.held.by) == ("d2h_copy.device", "wait")
    assert gap.held.step == gap.after.step
    assert gap.late_us == pytest.approx(40)
    assert gap.waited_us == pytest.approx(gap.us - 40)
    assert gap.start_us == gap.before.end_us
    causes = {(c.op, c.held, c.by): c for c in analyse(timeline).causes}
    cause = causes["commit.host", "d2h_copy.device", "wait"]
    assert cause.distance == 0
    assert cause.late_us == pytest.approx(40, rel=0.1)


def test_busy_and_idle_time_of_every_actor_make_the_step() -> None:
    for seed in (1, 5, 9):
        timeline = simulate(pipelined(), steps=40, seed=seed, jitter=0.5)
        found = analyse(timeline)
        for actor in found.actors:
            assert actor.busy_us + actor.idle_us == pytest.approx(found.mean_us)
            named = sum(cause.us for cause in found.causes if cause.actor == actor.actor)
            assert named == pytest.approx(actor.idle_us)
        assert sum(step_lengths(timeline)) / len(found.steady) == pytest.approx(found.mean_us)


def test_overlap_is_what_a_clock_that_looks_every_moment_sees() -> None:
    """The oracle looks at every µs whether anybody is busy; the analysis unites intervals."""
    graph = replace(random_step_graph(8), nodes=tuple(random_step_graph(8).nodes))
    plans = [pipelined(), compile_plan(graph)]
    for plan in plans:
        timeline = simulate(plan, steps=24, seed=2, jitter=0.3)
        found = analyse(timeline)
        spans = timeline.events
        first, last = found.window
        looks = 4000
        seen = {"host": 0, "device": 0, "both": 0}
        for look in range(looks):
            at = first + (last - first) * (look + 0.5) / looks
            busy = {s.actor in timeline.streams for s in spans if s.start_us <= at < s.end_us}
            seen["host"] += False in busy
            seen["device"] += True in busy
            seen["both"] += len(busy) == 2
        step = found.mean_us
        assert found.overlap.host_us == pytest.approx(seen["host"] / looks * step, abs=step / 100)
        assert found.overlap.device_us == pytest.approx(
            seen["device"] / looks * step, abs=step / 100
        )
        assert found.overlap.both_us == pytest.approx(seen["both"] / looks * step, abs=step / 100)


def test_the_cycle_of_a_simulated_run_is_the_plans() -> None:
    compared = 0
    for seed in range(60):
        try:
            plan = compile_plan(random_step_graph(seed))
        except GraphError:
            continue
        timeline = simulate(plan, steps=80)
        found = cycle(timeline)
        if not plan.period_us:
            continue
        assert found is not None, f"seed {seed}"
        assert found.repeats, f"seed {seed}: {found}"
        cost = sum(plan.costs[op] for op, _ in found.ops)
        assert cost / found.distance == pytest.approx(plan.period_us), f"seed {seed}: {found}"
        assert found.us == pytest.approx(plan.period_us)
        compared += 1
    assert compared >= 30


def test_where_what_holds_a_run_changes_every_step_no_cycle_repeats() -> None:
    """Two loops through the same host op; which of them holds it comes by chance."""

    def loop(name: str) -> Node:
        return Node(name, (Op((Read("go"),), (name,), cost_us=100),), actor=name)

    names = ["a", "b", "c", "d", "e"]
    go = Node("go", (Op(tuple(Read(n, 1) for n in names), ("go",), cost_us=1),), actor="main")
    graph = StepGraph.build(
        [go, *map(loop, names)], [Value("go"), *map(Value, names)], order="keep"
    )
    plan = compile_plan(graph)
    even = cycle(simulate(plan, steps=60))
    uneven = cycle(simulate(plan, steps=60, seed=1, jitter=0.5))
    assert even is not None
    assert even.repeats
    assert uneven is not None
    assert not uneven.repeats
    assert 0.15 < uneven.share < 0.5


def sleeping(host_s: float, device_s: float) -> Plan:
    """A host op and a device op that sleep; the host is a step ahead."""

    def host(ctx: OpContext) -> None:
        sleep(host_s)
        ctx.write("batch", ctx.step)

    def device(ctx: OpContext) -> None:
        sleep(device_s)
        ctx.write("token", (ctx.read("token@-1") or 0) + ctx.read("batch"))

    def commit(ctx: OpContext) -> None:
        ctx.write("text", ctx.read("token"))

    return compile_plan(
        StepGraph.build(
            [
                Node("schedule", (Op((Read("text", 2),), ("batch",), run=host),)),
                Node(
                    "forward",
                    (Op(),),
                    (Op((Read("batch"), Read("token", 1)), ("token",), run=device),),
                    stream="compute",
                ),
                Node("commit", (Op((Read("token"),), ("text",), run=commit),), offset=1),
            ],
            [
                Value("batch", "pinned", "slots", 2),
                Value("text"),
                Value("token", "pinned", "slots", 3),
            ],
            order="keep",
        )
    )


@pytest.mark.parametrize("bound", ["device", "host"])
def test_a_real_run_is_in_the_order_of_its_plan(bound: str) -> None:
    """Only what holds at any load: no op runs before what it waits for has ended."""
    plan = sleeping(*SLEEPS[bound])
    timeline = measured(plan, run(plan, executor="threads", steps=24, trace=True))
    assert len(timeline.events) == 24 * len(plan.graph.vertices)
    assert all(span.late_us >= 0 for span in timeline.events)
    spans = {(span.op, span.step): span for span in timeline.events}
    for source, target, distance, kind in plan_edges(plan):
        for step in range(max(0, -distance), 24 - max(0, distance)):
            before, after = spans[source, step], spans[target, step + distance]
            if kind == "launch":
                assert after.start_us >= before.start_us
            else:
                assert after.start_us >= before.end_us
    slowest = 6000  # a sleep is not shorter than asked for
    assert planned_beside(plan, timeline).period_us >= slowest
    assert slowest <= replayed_us(plan, timeline) <= analyse(timeline).mean_us * 1.01


SLEEPS = {"device": (0.001, 0.006), "host": (0.006, 0.001)}


@pytest.mark.parametrize("bound", ["device", "host"])
def test_the_events_of_a_run_show_who_waits_for_whom(bound: str) -> None:
    host, device = SLEEPS[bound]
    plan = sleeping(host, device)
    slow = {"schedule.host": host * 1e6, "forward.device": device * 1e6}
    costs = {op: slow.get(op, 20.0) for op in plan.graph.vertices}
    events = [
        OpEvent(span.op, span.step, span.actor, span.start_us / 1e6, span.end_us / 1e6)
        for span in simulate(plan, steps=24, costs=costs, jitter=0.02, seed=1).events
    ]
    timeline = measured(plan, replace(run(plan, executor="serial", steps=0), events=tuple(events)))
    found, folded = analyse(timeline), cycle(timeline)
    assert folded is not None
    assert folded.repeats
    on = {plan.graph.vertices[op].actor for op, _ in folded.ops}
    largest = found.causes[0]
    if bound == "device":
        assert folded.ops == (("forward.device", 1),)
        assert (largest.actor, largest.op, largest.by) == ("driver", "commit.host", "wait")
        assert found.overlap.hidden > 0.5
    else:
        assert on == {"driver"}
        assert (largest.actor, largest.op, largest.by) == ("compute", "forward.device", "launch")
    assert planned_beside(plan, timeline).period_us == pytest.approx(timeline.period_us, rel=0.05)


def test_a_serial_run_is_held_by_its_one_thread() -> None:
    plan = sleeping(0.001, 0.002)
    report = run(plan, executor="serial", steps=14, trace=True)
    timeline = measured(plan, report, serial=True)
    for before, span in pairwise(timeline.events):
        if not 2 <= span.step < 12:
            continue  # held by an op of a skipped step
        assert span.held is not None
        assert (span.held.op, span.held.step) == (before.op, before.step)
        assert span.held.by == "order"
    found = analyse(timeline)
    assert found.overlap.both_us == 0
    folded = cycle(timeline)
    assert folded is not None
    assert {op for op, _ in folded.ops} == set(plan.graph.vertices)
    planned = planned_beside(plan, timeline, serial=True)
    assert planned.period_us == pytest.approx(sum(op_costs(timeline).values()))


def test_a_serial_run_is_in_the_order_of_its_program_not_of_the_listing() -> None:
    """`reads` is listed above what writes its input."""
    nodes = [
        Node("reads", (Op((Read("made"),), cost_us=20.0),)),
        Node("makes", (Op(writes=("made",), cost_us=10.0),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("made")]))
    simulated = simulate(plan, steps=8, serial=True)
    ops = [(span.op, span.step) for span in simulated.events if span.step == 3]
    assert ops == [("makes.host", 3), ("reads.host", 3)]
    run = measured(plan, as_report(simulated), serial=True)
    held = run.span("reads.host", 3).held
    assert held is not None
    assert (held.op, held.step) == ("makes.host", 3)


def test_of_a_long_run_the_last_steps_may_be_all_that_was_noted() -> None:
    plan = pipelined()
    whole = as_report(simulate(plan, steps=60))
    late = replace(whole, events=tuple(each for each in whole.events if each.step >= 40))
    found = measured(plan, late)
    assert found.steady.start == 40
    assert analyse(found).mean_us == pytest.approx(analyse(measured(plan, whole)).mean_us)


def test_a_device_op_may_begin_while_it_is_launched() -> None:
    """As kernels do: it is then ready when its launch began, not when that ended."""
    plan = pipelined()
    report = as_report(simulate(plan, steps=12))
    early = tuple(
        event._replace(end_s=event.end_s + 3e-6) if event.op == "prepare.host" else event
        for event in report.events
    )
    timeline = measured(plan, replace(report, events=early))
    launch, device = timeline.span("prepare.host", 0), timeline.span("prepare.device", 0)
    assert launch.start_us < device.start_us < launch.end_us
    assert device.ready_us == launch.start_us
    assert all(span.ready_us <= span.start_us for span in timeline.events)


def test_of_two_that_end_at_once_the_op_before_on_the_actor_is_named() -> None:
    graph = StepGraph.build(
        [
            Node("a", (Op(writes=("x",), cost_us=5),), actor="left"),
            Node("b", (Op(cost_us=5),), actor="right"),
            Node("c", (Op((Read("x"),), cost_us=5),), actor="right"),
        ],
        [Value("x")],
        order="keep",
    )
    plan = compile_plan(graph)
    span = measured(plan, as_report(simulate(plan, steps=4))).span("c.host", 0)
    assert span.held == ("b.host", 0, "order")


def test_streams_that_work_at_a_time_count_once() -> None:
    """One stream's op lies inside another's: 10 µs busy and 10 idle, whatever the inner does."""

    def span(op: str, step: int, actor: str, start: float, end: float) -> Span:
        return Span(op, step, actor, 20 * step + start, 20 * step + end, None, 20 * step + start)

    spans = [
        each
        for step in range(9)
        for each in (
            span("long", step, "s1", 0, 10),
            span("short", step, "s2", 2, 4),
            span("host", step, "driver", 8, 13),
        )
    ]
    timeline = Timeline(
        tuple(spans), ("driver", "s1", "s2"), 9, 20, frozenset({"s1", "s2"}), range(2, 7)
    )
    overlap = analyse(timeline).overlap
    assert (overlap.host_us, overlap.device_us, overlap.both_us) == pytest.approx((5, 10, 2))
    assert (overlap.hidden, overlap.of_device) == pytest.approx((0.4, 0.2))


def test_a_run_without_events_says_how_to_get_some() -> None:
    plan = pipelined()
    with pytest.raises(StepweaveError, match="trace=True"):
        measured(plan, RunReport(steps=5))


def test_events_of_another_plan_are_refused() -> None:
    report = as_report(simulate(sleeping(0, 0), steps=3))
    with pytest.raises(StepweaveError, match=r"not of this plan: it has no op 'forward.devic'"):
        measured(
            pipelined(), replace(report, events=(OpEvent("forward.devic", 0, "compute", 0, 1),))
        )


def test_a_run_too_short_for_a_steady_state_says_so() -> None:
    plan = pipelined()
    timeline = measured(plan, as_report(simulate(plan, steps=3)))
    assert timeline.period_us > 0
    with pytest.raises(StepweaveError, match="no steady state: of 3 steps"):
        analyse(timeline)


def test_a_report_knows_when_its_run_began() -> None:
    from time import perf_counter

    before = perf_counter()
    report = run(sleeping(0.002, 0), executor="threads", steps=3, trace=True)
    after = perf_counter()
    assert before <= report.began_s <= report.began_s + report.seconds <= after
    assert report.events[0].start_s >= 0


def test_noting_an_op_costs_little() -> None:
    assert 0 < overhead_us() < 50
