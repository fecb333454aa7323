"""Segments on worker threads: operations are recorded, and done again without their Python."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.backends.tape.arrange import Pool
from stepweave.executors import captured_segment, run, threads
from stepweave.executors.capture import Captures
from stepweave.executors.counts import Counts
from stepweave.executors.errors import NodeFailure
from stepweave.executors.recorder import Recorder
from stepweave.executors.serial_program import SerialProgram
from stepweave.executors.serial_recorded import OnOneThread
from stepweave.executors.threads import OnThreads
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from tests.executors.test_capture import STEPS, add, carry, outs, pipeline
from tests.memory import settle


def counts(executor: OnThreads | OnOneThread) -> Counts:
    assert executor.captures is not None
    [found] = executor.captures.counts.values()
    return found


def test_replayed_steps_give_what_the_serial_program_gives() -> None:
    plan, executor = pipeline(), OnThreads()
    expected = outs(plan)
    for _ in range(3):
        assert outs(plan, executor) == expected
    found = counts(executor)
    assert found.captured == 3, "anew for the states of each run"
    assert found.moved == 3, "for the other slot"
    assert found.replayed >= 3 * (STEPS - 3 * 2), "the first of its shape and the recorded one run"


def test_the_serial_program_records_too_and_gives_the_same() -> None:
    plan, executor = pipeline(), OnOneThread()
    expected = outs(plan)
    for _ in range(3):
        assert outs(plan, executor) == expected
    found = counts(executor)
    assert found.captured == 3, "anew for the states of each run"
    assert found.moved == 3, "for the other slot"
    assert found.replayed >= 3 * (STEPS - 3 * 2)


def test_a_segment_of_the_serial_program_is_a_run_of_device_ops_whatever_their_streams() -> None:
    def device(name: str, stream: str, reads: str, write: str) -> Node:
        read = tuple(map(Read, reads.split()))
        return Node(name, (Op(),), (Op(read, (write,), run=carry),), stream=stream)

    nodes = [
        device("one", "a", "", "x"),
        device("two", "b", "x", "y"),
        Node("fill", (Op(writes=("z",), run=carry),)),
        device("three", "a", "y z", "w"),
    ]
    values = [Value(name, "device", "slots") for name in "xyw"]
    graph = StepGraph.build(nodes, [*values, Value("z", "pinned", "slots")], order="keep")
    plan = compile_plan(graph)
    captures = Captures(plan, order=lambda each: SerialProgram.of(each.graph).order())
    assert [*map(str, captures.of(plan).segments)] == ["a: one → two", "a: three"]


def test_an_error_within_a_recording_of_the_serial_program_ends_it() -> None:
    """Of the calling thread, which goes on: no operation of its own may be noted."""

    def failing(ctx: OpContext) -> None:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise KeyboardInterrupt
        carry(ctx)

    plan, executor = pipeline(carry=failing), OnOneThread()
    with pytest.raises(KeyboardInterrupt):
        outs(plan, executor)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_shape_that_comes_up_seldom_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "USUAL", 3)
    plan, executor = pipeline(), OnThreads()
    assert outs(plan, executor) == outs(plan)
    found = counts(executor)
    assert found.eager["first of its shape"] == 2, "in each of the two slots"
    assert found.eager["its shape has come up seldom so far"] == 1, "in both together"
    assert (found.captured, found.moved) == (1, 1)
    assert found.replayed == STEPS - 1 - sum(found.eager.values()) > 0
    assert executor.captures is not None
    assert executor.captures.learning == 2 + 1 + 1, "before a shape is replayed"

    monkeypatch.setattr(threads, "USUAL", STEPS)
    seldom = OnThreads()
    assert outs(plan, seldom) == outs(plan)
    assert (counts(seldom).captured, counts(seldom).replayed) == (0, 0)


def test_steps_are_replayed_while_a_recorder_looks_on() -> None:
    plan, executor, recorder = pipeline(), OnThreads(), Recorder()
    for _ in range(2):
        report = run(
            plan,
            executor=executor,
            steps=STEPS,
            states={"memory": torch.zeros(())},
            keep=["out"],
            trace=recorder,
        )
        assert [out.tolist() for out in report.kept["out"]] == outs(plan)
        ran = Counter(event.op for event in recorder.latest.events())
        assert ran == dict.fromkeys(plan.graph.vertices, STEPS)
    assert counts(executor).replayed >= 2 * (STEPS - 3 * 2)


def test_other_numbers_of_the_host_are_another_recording() -> None:
    plan, executor = pipeline(factor=lambda step: step // 2 % 2), OnThreads()
    assert outs(plan, executor) == outs(plan)
    assert (counts(executor).captured, counts(executor).moved) == (2, 2)
    assert counts(executor).replayed > 0


def test_what_cannot_be_recorded_is_done_once_and_as_usual_from_then_on() -> None:
    calls: list[int] = []

    def asking(ctx: OpContext) -> None:
        calls.append(1)
        total: Tensor = ctx.read("sum")
        memory: Tensor = ctx.state("memory")
        memory.add_(1)  # would count twice where the body was run again
        ctx.write("total", total + memory + total[0].item())

    plan, executor = pipeline(carry=asking), OnThreads()
    expected = outs(plan)
    calls.clear()
    assert outs(plan, executor) == expected
    assert len(calls) == STEPS
    assert counts(executor).captured == 0
    assert counts(executor).learning == 2, "the first of each slot: no other is ever faster"
    assert "gives the numbers of a tensor" in " ".join(counts(executor).eager)


def test_a_body_may_see_its_step_and_is_not_recorded_then() -> None:
    def seeing(ctx: OpContext) -> None:
        ctx.write("total", ctx.read("sum") + ctx.step)

    plan, executor = pipeline(carry=seeing), OnThreads()
    assert outs(plan, executor) == outs(plan)
    assert "uses the number of the step" in " ".join(counts(executor).eager)


def test_memory_that_is_given_away_is_not_recorded() -> None:
    """As to a kernel that Triton interprets, or to a library behind ctypes."""

    def giving(ctx: OpContext) -> None:
        made = ctx.read("sum") + ctx.state("memory")
        ctypes.memset(made.data_ptr(), 0, 4)
        ctx.write("total", made)

    plan, executor = pipeline(carry=giving), OnThreads()
    assert outs(plan, executor) == outs(plan)
    assert counts(executor).captured == 0
    assert "gives memory to code" in " ".join(counts(executor).eager)


def passing_on(change: Callable[[Tensor], Any]) -> Plan:
    """`hold` publishes what it read under a name of its own, and somebody reads that later."""

    def stage(ctx: OpContext) -> None:
        begun: Tensor = ctx.buffer("begun")
        ctx.write("begun", begun.fill_(ctx.step))

    def work(ctx: OpContext) -> None:
        ctx.write("made", ctx.read("begun") * 2)

    def hold(ctx: OpContext) -> None:
        ctx.write("held", change(ctx.read("made")))

    def late(ctx: OpContext) -> None:
        held = ctx.read("held")
        ctx.write("seen", None if held is None else held.to_dense().tolist())

    zeros = partial(torch.zeros, 3)
    nodes = [
        Node(
            "work",
            (Op(writes=("begun",), run=stage),),
            (Op((Read("begun"),), ("made",), run=work),),
            stream="compute",
        ),
        Node("hold", (Op(),), (Op((Read("made"),), ("held",), run=hold),), stream="compute"),
        Node("late", (Op((Read("held", 2),), ("seen",), run=late),), offset=1),
    ]
    values = [
        Value("begun", "pinned", "slots", allocate=zeros),
        Value("made", "device", "slots", initial=zeros()),
        Value("held", "pinned", "slots"),
        Value("seen", "host", "fresh"),
    ]
    return compile_plan(StepGraph.build(nodes, values, order="keep"))


@pytest.mark.parametrize("executor", [OnThreads, OnOneThread])
@pytest.mark.parametrize("change", [Tensor.cpu, lambda each: each[:], Tensor.clone])
def test_what_is_on_the_host_already_is_passed_on_as_it_is_now(
    change: Callable[[Tensor], Tensor], executor: type[OnThreads]
) -> None:
    plan = passing_on(change)
    found, wanted = (
        run(plan, executor=each, steps=STEPS, keep=["seen"]).kept["seen"]
        for each in (executor(), "serial")
    )
    assert found == wanted
    assert wanted[-1] == [2.0 * (STEPS - 3)] * 3


def test_tensors_without_memory_of_one_piece_are_passed_on() -> None:
    plan = passing_on(lambda each: (each + 1).to_sparse())
    found = run(plan, executor=OnThreads(), steps=STEPS, keep=["held"]).kept["held"]
    assert [each.to_dense().tolist() for each in found] == [
        [2.0 * at + 1] * 3 for at in range(STEPS)
    ]


@pytest.mark.parametrize("wrap", [lambda x: MappingProxyType({"x": x}), lambda x: deque([x])])
def test_memory_of_a_slot_within_what_nobody_can_make_anew_is_refused(
    wrap: Callable[[Tensor], object],
) -> None:
    with pytest.raises(NodeFailure, match="publish a copy") as caught:
        run(passing_on(wrap), executor=OnThreads(), steps=STEPS)
    assert getattr(caught.value.__cause__, "code", "") == "SW-SHARED-MEMORY"


def test_a_step_is_done_once_where_what_was_noted_of_it_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> int:
        raise RuntimeError("no memory")

    plan, executor = pipeline(), OnThreads()
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "take", full)
        assert outs(plan, executor) == outs(plan)
    assert counts(executor).captured == 0
    assert "no memory" in " ".join(counts(executor).eager)


def test_what_fails_while_it_is_recorded_fails_as_usual() -> None:
    ran: list[int] = []

    def failing(ctx: OpContext) -> None:
        carry(ctx)
        ran.append(len(ran))
        if len(ran) == 2:  # the step of the recording
            raise ValueError("mine")

    plan, executor = pipeline(carry=failing), OnThreads()
    with pytest.raises(NodeFailure, match="mine"):
        outs(plan, executor)
    assert len(ran) == 2, "what is done is not done again"
    assert outs(plan, executor) == outs(pipeline()), "nothing of it is left behind"


def test_the_recording_that_was_not_used_for_longest_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = pipeline(factor=lambda step: step // 2 % 2)  # four kinds of steps, in turn
    executor = OnThreads()
    expected = outs(plan)
    assert outs(plan, executor) == expected
    assert executor.captures is not None
    [held] = executor.captures.of(plan).runs.values()
    assert held._size == sum(each.recording.size for each in held._known.values())
    assert counts(executor).replayed > 0
    monkeypatch.setattr(captured_segment, "OPERATIONS", held._size - 1)
    executor = OnThreads()
    assert outs(plan, executor) == expected
    assert executor.captures is not None
    [held] = executor.captures.of(plan).runs.values()
    assert len(held._known) == 3
    assert counts(executor).captured + counts(executor).moved > 4, "what was given up comes anew"
    assert counts(executor).replayed == counts(executor).moved, "the oldest always comes next"


def test_recordings_do_not_keep_what_their_steps_made() -> None:
    settle()
    made: list[weakref.ref[Tensor]] = []

    def large(ctx: OpContext) -> None:
        product = torch.ones(1000, 1000) * ctx.read("total")[0]
        made.append(weakref.ref(product))
        add(ctx)
        ctx.write("sum", ctx.read("staging").numbers + product[0, :3])

    plan, executor = pipeline(add=large), OnThreads()
    expected = outs(plan)
    for _ in range(4):
        assert outs(plan, executor) == expected
    gc.collect()
    assert (counts(executor).captured, counts(executor).moved) == (4, 4)
    assert [ref for ref in made if ref() is not None] == []
    assert executor._tapes is not None
    pools = executor._tapes.pools.values()
    taken = sum(len(block) for pool in pools for block in pool.blocks)
    assert taken < 3 * 4_000_000, "the two factors at most, whatever the number of recordings"
