"""The threads executor: the serial values, real overlap, clean ends whatever happens."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from stepweave.executors import NodeFailure, RunReport, StuckWait, run
from stepweave.executors.concurrent import ConcurrentRun
from stepweave.executors.frontier import Frontier
from stepweave.executors.run import Executor
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.errors import GraphError, StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.bounds import BOUND
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.exploring.nodes import Interleaved
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording, with_graph
from stepweave.testing.unverified import run_unverified


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def host(name: str, run: Run | None = None, *, actor: str = "driver", **op: object) -> Node:
    return Node(name, (Op(run=run, **op),), actor=actor)  # type: ignore[arg-type]


def decode(around: Callable[[str, Run], Run] | None = None, *, depth: int = 2) -> Plan:
    """schedule, forward on `compute`, d2h_copy on `copy`, commit; `depth` steps in flight."""
    graph = StepGraph.build(
        [
            Node("schedule", (Op((Read("text", depth), Read("table")), ("batch", "table")),)),
            Node(
                "forward",
                (Op((Read("batch"),), ("staging",)),),
                (Op((Read("staging"), Read("sampled", 1)), ("sampled",)),),
                stream="compute",
            ),
            Node("copy", (Op(),), (Op((Read("sampled"),), ("host_tokens",)),), stream="copy"),
            Node("commit", (Op((Read("host_tokens"),), ("text",)),), offset=depth - 1),
        ],
        [
            Value("batch"),
            Value("text"),
            Value("staging", "pinned", "slots"),
            Value("sampled", "device", "slots"),
            Value("host_tokens", "pinned", "slots"),
        ],
        ["table"],
        order="keep",
        name="decode",
    )
    plan = compile_plan(graph)
    return with_graph(plan, recording(graph, around))


def go(plan: Plan, executor: str | Executor = "threads", steps: int | None = 6) -> RunReport:
    return run(
        plan,
        executor=executor,
        steps=steps,
        states=recorded_states(plan.graph),
        keep=list(plan.graph.values),
        watchdog_s=10,
    )


# --- the same values as the serial program ---


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(3))
def test_threads_compute_what_the_serial_program_computes(part: int) -> None:
    compared = 0
    for seed in range(70 * part, 70 * part + 70):
        try:
            graph = recording(random_step_graph(seed))
            plan = compile_plan(graph)
            expected = go(plan, "serial", steps=7)
        except StepweaveError:
            continue  # no plan, or no serial program
        assert go(plan, steps=7).kept == expected.kept, f"seed {seed}"
        compared += 1
    assert compared >= 30


def test_a_run_that_is_refused_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(StepweaveError, match="tokne"):
            run(decode(), executor="threads", steps=2, keep=["tokne"])
    assert threading.active_count() == before


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_depth_and_length_of_run_agrees_with_serial(depth: int, steps: int) -> None:
    plan = decode(depth=depth)
    report = go(plan, steps=steps)
    assert report.kept == go(plan, "serial", steps=steps).kept
    assert report.steps == steps
    assert all(len(versions) == steps for versions in report.kept.values())


def test_slots_wrap_around_while_ops_take_turns_to_be_slow() -> None:
    def around(name: str, work: Run) -> Run:
        def slow(ctx: OpContext) -> None:
            if (ctx.step + len(name)) % 4 == 0:
                time.sleep(0.001)
            work(ctx)

        return slow

    plan = decode(around)
    assert go(plan, steps=40).kept == go(plan, "serial", steps=40).kept


def test_a_carried_read_begins_with_the_initial_versions() -> None:
    seen: list[object] = []

    def count(ctx: OpContext) -> None:
        seen.append(ctx.read("count"))
        ctx.write("count", ctx.step)

    node = host("counter", count, reads=(Read("count", 2),), writes=("count",))
    plan = compile_plan(StepGraph.build([node], [Value("count", initial="none yet")]))
    for executor in ("serial", "threads"):
        seen.clear()
        run(plan, executor=executor, steps=5)
        assert seen == ["none yet", "none yet", 0, 1, 2]


# --- what waits are for ---


def test_a_host_op_and_a_device_op_are_in_progress_at_the_same_time() -> None:
    """`forward` of step 0 and `schedule` of step 1 meet, which needs both to be under way."""
    meeting = threading.Barrier(2, timeout=10)

    def around(name: str, work: Run) -> Run:
        def met(ctx: OpContext) -> None:
            if (name, ctx.step) in {("forward.device", 0), ("schedule.host", 1)}:
                meeting.wait()
            work(ctx)

        return met

    assert go(decode(around), steps=3).steps == 3
    meeting = threading.Barrier(2, timeout=0.05)
    with pytest.raises(NodeFailure, match="BrokenBarrier"):
        go(decode(around, depth=1), steps=3)  # the synchronous program never overlaps them


def test_an_op_sees_how_long_its_own_waits_blocked_it() -> None:
    waited: dict[str, list[float]] = defaultdict(list)

    def around(name: str, work: Run) -> Run:
        def seen(ctx: OpContext) -> None:
            waited[name].append(ctx.waited_s)
            if name == "copy.device":
                time.sleep(0.05)
            work(ctx)

        return seen

    plan = decode(around, depth=1)
    assert {wait.target for wait in plan.waits} == {"copy.device", "commit.host"}
    go(plan, steps=3)
    assert 0.02 < max(waited["commit.host"]) < 5
    for name in ("schedule.host", "forward.host", "forward.device", "copy.host"):
        assert waited[name] == [0.0] * 3, f"{name} has no wait of its own"
    waited.clear()
    go(plan, "serial", steps=3)
    assert {seconds for each in waited.values() for seconds in each} == {0.0}


def test_a_wait_that_is_over_takes_no_time() -> None:
    """The driver goes on to the wait only once that is over."""
    waited: list[float] = []
    copied = threading.Semaphore(0)

    def around(name: str, work: Run) -> Run:
        def seen(ctx: OpContext) -> None:
            if name == "schedule.host" and ctx.step >= 2:
                assert copied.acquire(timeout=200)  # of the step that the next commit waits for
                time.sleep(0.02)  # the end of that op is noted after its body
            if name == "commit.host":
                waited.append(ctx.waited_s)
            work(ctx)
            if name == "copy.device":
                copied.release()

        return seen

    go(decode(around, depth=2), steps=9)
    assert min(waited) == 0.0 or sorted(waited)[4] < 0.01


def test_two_streams_are_in_progress_at_the_same_time() -> None:
    meeting = threading.Barrier(2)

    def around(name: str, work: Run) -> Run:
        def met(ctx: OpContext) -> None:
            if (name, ctx.step) in {("forward.device", 1), ("copy.device", 0)}:
                meeting.wait(timeout=10)
            work(ctx)

        return met

    assert go(decode(around), steps=3).steps == 3


def test_a_plan_without_its_guard_really_reads_the_wrong_version() -> None:
    """One pinned slot, and the wait that protects it deleted: the copy sees the next write."""
    overwritten = threading.Event()
    seen: list[object] = []

    def stage(ctx: OpContext) -> None:
        ctx.write("staging", f"staged {ctx.step}")
        if ctx.step == 1:
            overwritten.set()

    def copy(ctx: OpContext) -> None:
        overwritten.wait(timeout=10)
        seen.append(ctx.read("staging"))

    node = Node(
        "copy",
        (Op(writes=("staging",), run=stage),),
        (Op((Read("staging"),), run=copy),),
        stream="compute",
    )
    plan = compile_plan(StepGraph.build([node], [Value("staging", "pinned", "slots", slots=1)]))
    assert [(wait.source, wait.target, wait.distance) for wait in plan.waits] == [
        ("copy.device", "copy.host", 1)
    ]
    run_unverified(replace(plan, waits=()), "threads", RunArguments(steps=2))
    assert seen == ["staged 1", "staged 1"]


@pytest.mark.parametrize("there", [-1, 1])
def test_a_path_through_a_skipped_step_holds(there: int) -> None:
    """u(i) → v(i + there) → w(i): at an end of the run v's step is out of range."""
    order: list[tuple[str, int]] = []
    steps = 3

    def note(name: str, slow: float = 0) -> Run:
        def work(ctx: OpContext) -> None:
            time.sleep(slow)
            order.append((name, ctx.step))

        return work

    nodes = [
        host("u", note("u", 0.02), actor="a"),
        host("v", note("v"), actor="b"),
        host("w", note("w"), actor="c"),
    ]
    plan = compile_plan(StepGraph.build(nodes, []))
    plan = replace(plan, waits=(Wait("u.host", "v.host", there), Wait("v.host", "w.host", -there)))
    run_unverified(plan, "threads", RunArguments(steps=steps, watchdog_s=10))
    assert len(order) == 3 * steps
    for step in range(steps):
        assert order.index(("u", step)) < order.index(("w", step))


def test_steps_after_the_last_do_not_wait_for_a_stream_that_others_still_use() -> None:
    """`early` has no instance that `late` could wait for there, and its stream cannot end yet."""
    nodes = [
        Node("early", device=(Op(),), actor="driver", stream="copy", offset=1),
        Node("late", device=(Op(),), actor="helper", stream="compute"),
        Node("other", device=(Op(),), actor="helper", stream="copy"),
        Node("last", actor="helper"),
    ]
    plan = compile_plan(StepGraph.build(nodes, []))
    waits = (Wait("early.device", "late.device", 0), Wait("late.device", "last.host", 0))
    given = RunArguments(steps=3, watchdog_s=1)
    assert run_unverified(replace(plan, waits=waits), "threads", given).steps == 3


def test_a_producer_that_nothing_bounds_does_not_run_away() -> None:
    made: list[int] = []
    lead: list[int] = []

    def make(ctx: OpContext) -> None:
        made.append(ctx.step)
        ctx.write("x", ctx.step)

    def take(ctx: OpContext) -> None:
        time.sleep(0.0005)
        lead.append(made[-1] - ctx.step)
        if ctx.step == 150:
            ctx.stop()

    nodes = [
        host("make", make, writes=("x",)),
        host("take", take, actor="other", reads=(Read("x"),)),
    ]
    report = run(compile_plan(StepGraph.build(nodes, [Value("x")])), executor="threads")
    assert 10 < max(lead) <= BOUND
    assert len(lead) == len(made) == report.steps <= 151 + BOUND


# --- the end of an open run ---


@pytest.mark.sampled(10)
@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    "stopper", ["schedule.host", "forward.host", "forward.device", "copy.device", "commit.host"]
)
def test_a_stop_ends_the_run_after_whole_steps(executor: str, depth: int, stopper: str) -> None:
    for at in (0, 1, 4):
        ran: dict[str, list[int]] = defaultdict(list)

        def around(name: str, work: Run, at: int = at, ran: dict[str, list[int]] = ran) -> Run:
            def noted(ctx: OpContext) -> None:
                work(ctx)
                ran[name].append(ctx.step)
                if name == stopper and ctx.step == at:
                    ctx.stop()

            return noted

        plan = decode(around, depth=depth)
        report = go(plan, executor, steps=None)
        assert at + 1 <= report.steps <= at + 1 + depth
        assert len(ran) == 6
        assert all(steps == list(range(report.steps)) for steps in ran.values())
        assert report.kept == go(decode(depth=depth), "serial", steps=report.steps).kept
        if stopper == "schedule.host":  # the op that begins steps: none is in flight after it
            assert report.steps == at + 1


def test_an_actor_that_already_waits_for_the_next_step_sees_the_stop() -> None:
    def stop(ctx: OpContext) -> None:
        if ctx.step == 3:
            time.sleep(0.05)  # `follow` has come to step 4 and waits for `lead` of step 4
            ctx.stop()

    nodes = [host("lead", writes=("x",)), host("stop", stop)]
    nodes.append(host("follow", actor="other", reads=(Read("x"),)))
    plan = compile_plan(StepGraph.build(nodes, [Value("x")], order="keep"))
    assert run(plan, executor="threads", watchdog_s=1).steps == 4


# --- failures ---


OPS = ["schedule.host", "forward.host", "forward.device", "copy.host", "copy.device", "commit.host"]


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("op", OPS)
def test_a_failing_op_ends_the_run_with_its_name(executor: str, op: str) -> None:
    for step in range(4):

        def around(name: str, work: Run, step: int = step) -> Run:
            def fail(ctx: OpContext) -> None:
                if name == op and ctx.step == step:
                    raise ValueError("boom")
                work(ctx)

            return fail

        with pytest.raises(NodeFailure) as caught:
            go(decode(around), executor, steps=4)
        node = op.split(".")[0]
        failure = caught.value
        assert (failure.node, failure.op, failure.step) == (node, op, step)
        assert isinstance(failure.__cause__, ValueError)
        assert str(failure) == f"node {node!r}: op {op!r} failed in step {step}: ValueError: boom"


def test_of_several_failures_the_one_of_the_earliest_step_is_raised() -> None:
    both = threading.Barrier(2, timeout=10)

    def around(name: str, work: Run) -> Run:
        def fail(ctx: OpContext) -> None:
            if (name, ctx.step) in {("forward.device", 2), ("schedule.host", 3)}:
                both.wait()
                time.sleep(0.05 * (ctx.step == 2))  # the later step fails first
                raise ValueError(name)
            work(ctx)

        return fail

    with pytest.raises(NodeFailure) as caught:
        go(decode(around), steps=6)
    assert (caught.value.op, caught.value.step) == ("forward.device", 2)


def test_a_failure_is_told_while_others_are_still_inside_their_ops() -> None:
    both, told = threading.Barrier(2, timeout=300), threading.Event()
    heard: list[tuple[str, int]] = []

    def around(name: str, work: Run) -> Run:
        def fail(ctx: OpContext) -> None:
            if (name, ctx.step) in {("forward.device", 2), ("schedule.host", 3)}:
                both.wait()
                if ctx.step == 2:
                    raise ValueError(name)
                assert told.wait(300)
            work(ctx)

        return fail

    def hear(failure: NodeFailure) -> None:
        heard.append((failure.op, failure.step))
        told.set()

    plan = decode(around)
    states = recorded_states(plan.graph)
    with pytest.raises(NodeFailure):
        run(plan, executor="threads", steps=6, states=states, watchdog_s=600, on_failure=hear)
    assert heard == [("forward.device", 2)]


def test_no_op_begins_after_a_failure() -> None:
    failed = threading.Event()
    late: list[str] = []

    def around(name: str, work: Run) -> Run:
        def fail(ctx: OpContext) -> None:
            if failed.is_set():
                late.append(name)
            if (name, ctx.step) == ("forward.device", 1):
                time.sleep(0.02)
                failed.set()
                raise ValueError
            work(ctx)

        return fail

    with pytest.raises(NodeFailure):
        go(decode(around), steps=50)
    assert len(late) <= 2  # those that were about to begin on other actors


@pytest.mark.parametrize("executor", ["serial", "threads", Interleaved(1)], ids=str)
def test_an_op_that_exits_the_interpreter_is_a_failure(executor: Any) -> None:
    def leave(ctx: OpContext) -> None:
        sys.exit(3)

    plan = compile_plan(StepGraph.build([host("leave", leave)], []))
    with pytest.raises(NodeFailure, match="SystemExit: 3"):
        run(plan, executor=executor, steps=2)


def told_of(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, begun: bool = False
) -> threading.Event:
    """Set once that method has been called, and has returned unless `begun`."""
    called, original = threading.Event(), getattr(owner, method)

    def noted(*arguments: object) -> object:
        if begun:
            called.set()
        try:
            return original(*arguments)
        finally:
            called.set()

    monkeypatch.setattr(owner, method, noted)
    return called


def test_ctrl_c_lets_steps_in_flight_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    started = told_of(monkeypatch, ConcurrentRun, "_finish", begun=True)
    ran: dict[str, list[int]] = defaultdict(list)
    main = threading.main_thread().ident
    assert main is not None

    def around(name: str, work: Run) -> Run:
        def interrupt(ctx: OpContext) -> None:
            if (name, ctx.step) == ("forward.device", 5):
                assert started.wait(timeout=200)  # before, it gives up what is not yet running
                signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.001)
            work(ctx)
            ran[name].append(ctx.step)

        return interrupt

    with pytest.raises(KeyboardInterrupt):
        go(decode(around), steps=None)
    assert ran["schedule.host"][-1] >= 5
    assert all(steps == ran["schedule.host"] for steps in ran.values())


def test_a_second_ctrl_c_does_not_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, list[int]] = defaultdict(list)
    main = threading.main_thread().ident
    assert main is not None
    started = told_of(monkeypatch, ConcurrentRun, "_finish", begun=True)
    stopping = told_of(monkeypatch, Frontier, "stop")
    giving_up = told_of(monkeypatch, ConcurrentRun, "_abort")

    def around(name: str, work: Run) -> Run:
        def interrupt(ctx: OpContext) -> None:
            if (name, ctx.step) == ("forward.device", 5):
                assert started.wait(timeout=200)
                for heard in (stopping, giving_up):  # the main thread has taken it in
                    signal.pthread_kill(main, signal.SIGINT)
                    assert heard.wait(timeout=200)
            work(ctx)
            ran[name].append(ctx.step)

        return interrupt

    with pytest.raises(KeyboardInterrupt):
        go(decode(around), steps=None)
    assert ran["forward.device"][-1] == 5
    assert ran["commit.host"][-1] < 5


# --- the watchdog ---


def deadlocked() -> Plan:
    nodes = [host("a", actor="left"), host("b", actor="right")]
    plan = compile_plan(StepGraph.build(nodes, []))
    return replace(plan, waits=(Wait("a.host", "b.host", 0), Wait("b.host", "a.host", 0)))


def test_waits_in_a_circle_are_reported_with_what_everybody_does() -> None:
    with pytest.raises(StuckWait) as caught:
        run_unverified(deadlocked(), "threads", RunArguments(steps=3, watchdog_s=0.1))
    assert str(caught.value) == (
        "op 'a.host' of step 0 waits for 'b.host' of step 0, and nothing has moved for 0.1 s:\n"
        "  left: waits, for 'a.host' of step 0, for 'b.host' of step 0\n"
        "  right: waits, for 'b.host' of step 0, for 'a.host' of step 0"
    )
    assert (caught.value.op, caught.value.awaited) == ("a.host", "b.host")


def test_an_op_that_hangs_is_named_by_those_who_wait_for_it() -> None:
    released = threading.Event()

    def around(name: str, work: Run) -> Run:
        def hang(ctx: OpContext) -> None:
            if (name, ctx.step) == ("forward.device", 2):
                released.wait(timeout=200)
            work(ctx)

        return hang

    plan = decode(around)
    states = recorded_states(plan.graph)
    try:
        with pytest.raises(StuckWait) as caught:
            run(plan, executor="threads", steps=9, states=states, watchdog_s=0.2)
    finally:
        released.set()
        for thread in threading.enumerate():
            if thread.name.startswith("stepweave-"):
                thread.join(timeout=200)
    assert caught.value.activity["compute"] == "runs 'forward.device' of step 2"
    assert caught.value.awaited in {"forward.device", "copy.device"}


def test_a_slow_op_is_no_reason_to_stop_without_a_watchdog() -> None:
    plan = compile_plan(StepGraph.build([host("slow", lambda ctx: time.sleep(0.1))], []))
    assert run(plan, executor="threads", steps=2, watchdog_s=None).steps == 2
    assert run(plan, executor="threads", steps=2, watchdog_s=0.05).steps == 2  # nobody waits


# --- the rest ---


def test_the_switch_interval_is_restored() -> None:
    before = sys.getswitchinterval()
    inside: list[float] = []
    node = host("look", lambda ctx: inside.append(sys.getswitchinterval()))
    run(compile_plan(StepGraph.build([node], [])), executor="threads", steps=1)
    assert inside == [pytest.approx(1e-4)]
    assert sys.getswitchinterval() == before

    def fail(ctx: OpContext) -> None:
        raise ValueError

    boom = compile_plan(StepGraph.build([host("boom", fail)], []))
    with pytest.raises(NodeFailure):
        run(boom, executor="threads", steps=1)
    assert sys.getswitchinterval() == before


def test_two_runs_at_once_do_not_disturb_each_other() -> None:
    plan = decode()
    expected = go(plan, "serial", steps=30).kept
    found: list[object] = []
    runs = [threading.Thread(target=lambda: found.append(go(plan, steps=30).kept)) for _ in "ab"]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    assert found == [expected, expected]


def test_a_trace_has_every_op_of_every_step_once_and_in_order() -> None:
    plan = decode()
    report = run(plan, executor="threads", steps=5, states=recorded_states(plan.graph), trace=True)
    seen = [(event.op, event.step) for event in report.events]
    assert sorted(seen) == sorted((op, step) for op in plan.graph.vertices for step in range(5))
    for actor in plan.actors:
        mine = [event for event in report.events if event.actor == actor]
        assert mine
        assert all(a.end_s <= b.start_s for a, b in pairwise(mine))
    at = {(event.op, event.step): event for event in report.events}
    for wait in plan.waits:
        for step in range(5 - wait.distance):
            source, target = at[wait.source, step], at[wait.target, step + wait.distance]
            assert source.end_s <= target.start_s
    assert min(event.start_s for event in report.events) >= 0
    assert max(event.end_s for event in report.events) <= report.seconds


def test_a_graph_that_cannot_be_ordered_has_no_plan_to_run() -> None:
    with pytest.raises(GraphError):
        compile_plan(
            StepGraph.build(
                [
                    host("a", actor="left", reads=(Read("y"),), writes=("x",)),
                    host("b", actor="right", reads=(Read("x"),), writes=("y",)),
                ],
                [Value("x"), Value("y")],
            )
        )


@pytest.mark.parametrize("carry", [0, 1, 7])
def test_a_fresh_version_is_there_for_a_reader_as_far_behind_as_it_may_be(carry: int) -> None:
    """The writer runs ahead of a reader that has stopped, until nothing lets it go on."""
    seen: list[object] = []
    far = threading.Event()
    last = [0]

    def make(ctx: OpContext) -> None:
        ctx.write("x", ctx.step)
        if ctx.step == last[0]:
            far.set()

    def look(ctx: OpContext) -> None:
        if ctx.step == 2 * carry + 1:
            assert far.wait(60)
        seen.append(ctx.read("x"))

    nodes = [
        Node("make", (Op(writes=("x",), run=make),)),
        Node("look", (Op((Read("x", carry),), run=look),), actor="other"),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", initial="-")], order="keep"))
    last[0] = 2 * carry + BOUND  # the last step that the plan lets begin
    steps = last[0] + 5
    run(plan, executor="threads", steps=steps)
    assert seen == ["-"] * carry + list(range(steps - carry))
