"""Captured segments in runs that go from plan to plan: each plan has its own, which last."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any
from weakref import ref
from zlib import crc32

import pytest
import torch
from torch import Tensor

from stepweave.executors import captured_segment, run, threads
from stepweave.executors.capture import Captures
from stepweave.executors.captured_segment import SWITCHED
from stepweave.executors.context import Memory
from stepweave.executors.course import Course, Goal, Turned
from stepweave.executors.interrupted import interrupted
from stepweave.executors.run import Executor
from stepweave.executors.serial_recorded import OnOneThread
from stepweave.executors.terms import Terms
from stepweave.executors.threads import OnThreads
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Op, OpContext
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph, Vertex
from stepweave.graph.switch import Instance
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.switched_graphs import random_switch
from tests.executors.tensors import plain
from tests.executors.test_capture import pipeline
from tests.executors.test_switching import Plans, Switches, both, now_and_then, where
from tests.memory import settle

STEPS = 60
LEG = 12  # steps from one switch to the next
Recording = RecordedCalls | OnThreads | OnOneThread
RECORDING: tuple[Callable[[], Recording], ...] = (
    lambda: RecordedCalls(graphs=True),
    OnThreads,
    OnOneThread,
)


@pytest.fixture(autouse=True)
def every_shape_is_recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "USUAL", 1)


@cache
def plans() -> dict[str, Plan]:
    """The same ops, at two depths and with other numbers of slots."""
    return {"a": pipeline(slots=2, behind=1), "b": pipeline(slots=3, behind=2)}


@cache
def switches() -> Switches:
    return both(plans())


def follow(
    executor: str | Executor,
    turns: list[Turned] | None = None,
    heard: Callable[[int], None] = lambda step: None,
) -> tuple[list[object], list[Turned]]:
    """What a run gives that goes over every `LEG` steps, or just where another did."""

    def decide(step: int) -> Goal:
        heard(step)
        done = len(course.turned)
        if turns is not None:
            return Goal(turns[done].after, turns[done].step) if done < len(turns) else Goal("a")
        due = (done + 1) * LEG
        return Goal("ba"[done % 2], due) if step >= due - 4 and due < STEPS else Goal(course.at)

    course = Course(plans(), switches(), "a", decide)
    states = {"memory": torch.zeros(())}
    given = run(
        plans()["a"], executor=executor, steps=STEPS, states=states, keep=["out"], course=course
    )
    return [out.tolist() for out in given.kept["out"]], [*course.turned]


def captures(executor: Recording) -> Captures:
    assert executor.captures is not None
    return executor.captures


@pytest.mark.parametrize("made", RECORDING, ids=["tape", "cpu", "one thread"])
def test_steps_of_every_plan_are_replayed_and_again_when_it_comes_back(
    made: Callable[[], Recording],
) -> None:
    executor = made()
    given, turned = follow(executor)
    assert given == follow("serial", turned)[0]
    assert len(turned) == STEPS // LEG - 1
    found = captures(executor).replayed()
    begins = [0, *(each.step for each in turned), STEPS]
    for leg, (begin, end) in enumerate(pairwise(begins)):
        if leg > 1:  # but where ops of two plans take turns
            assert found >= {*range(begin + 5, end - 2)}, leg
    [counts] = captures(executor).counts.values()
    assert counts.captured + counts.moved == 2 + 3, "one for each slot: no plan is captured anew"
    assert 0 < counts.eager[SWITCHED] < counts.replayed


@pytest.mark.parametrize("made", RECORDING[1:], ids=["cpu", "one thread"])
def test_what_legs_worked_on_is_let_go_while_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], Recording]
) -> None:
    memories: list[ref[Memory]] = []
    making = Memory.of

    def of(*given: Any) -> Memory:
        memory = making(*given)
        memories.append(ref(memory))
        return memory

    def begins(step: int) -> None:
        if step == STEPS - 1:
            gc.collect()
            alive.append([each() is not None for each in memories])

    settle()
    monkeypatch.setattr(Memory, "of", staticmethod(of))
    alive: list[list[bool]] = []
    follow(made(), heard=begins)
    assert [each[:2] for each in alive] == [[False, False]], "of five legs"


def test_captures_are_of_all_plans_of_a_run_and_last_until_a_run_of_others() -> None:
    settle()
    first, then = plans().values()
    assert Captures(first, then).fit([then, first])
    assert not Captures(first, then).fit([first])
    assert not Captures(first).fit([first, then])
    executor = OnThreads()
    follow(executor)
    before = ref(captures(executor))
    follow(executor)
    assert captures(executor) is before(), "another run of the same"
    run(first, executor=executor, steps=1, states={"memory": torch.zeros(())})
    gc.collect()
    assert before() is None


def test_plans_share_what_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_segment, "LIMIT", 4)
    executor = RecordedCalls(graphs=True)
    given, turned = follow(executor)
    assert given == follow("serial", turned)[0]
    [counts] = captures(executor).counts.values()
    assert counts.captured == 2 + 2
    assert counts.eager["2 shapes are captured already"] > 0
    assert Terms(plans=3).share(2) == 1


def test_a_segment_is_interrupted_where_something_is_between_its_ops_or_some_are_missing() -> None:
    def listed(*ops: str) -> list[Instance]:
        return [Instance(int(op[0]), op[1], int(op[2:])) for op in ops]

    ops = listed("0a1", "0b1", "0a2", "1a0", "0b2", "1b0", "0b3", "1a1", "1b1")
    assert interrupted(ops, 0, "ab") == {2, 3}
    assert interrupted(ops, 1, "ab") == {0}
    assert interrupted(ops, 1, "a") == set()


# --- random graphs -------------------------------------------------------------------------------


def remembering(graph: StepGraph, memory: Mapping[str, Tensor]) -> StepGraph:
    """The graph with ops that write what all that they ever read comes to, in tensors of slots."""

    def op(vertex: Vertex) -> Op:
        mine, declared, number = memory[vertex.name], vertex.op, crc32(vertex.name.encode())

        def work(ctx: OpContext) -> None:
            mine.mul_(31).add_(number)
            for read in declared.reads:
                datum = ctx.read(str(read)) if read.name in graph.values else ctx.state(read.name)
                mine.mul_(31).add_(datum)
            for name in declared.writes:
                if name in graph.states:
                    ctx.state(name).mul_(31).add_(mine)
                elif graph.values[name].place == "device":
                    ctx.write(name, mine + 1)
                else:
                    ctx.write(name, ctx.buffer(name).copy_(mine))

        return replace(declared, run=work)

    values = {
        name: replace(
            value,
            storage="slots",
            initial=plain().fill_(3),
            allocate=None if value.place == "device" else plain,
        )
        for name, value in graph.values.items()
    }
    return replace(graph, values=values).with_ops(op)


@cache
def random_plans(seed: int) -> tuple[Plans, Switches, dict[str, Tensor]] | None:
    """Two plans, and by plan and op what their ops remember."""
    memory: dict[str, Tensor] = {}
    made = {}
    try:
        for name, graph in zip("ab", random_switch(seed, keyed=False), strict=True):
            mine = {op: plain() for op in graph.vertices}
            memory |= {f"{name} {op}": tensor for op, tensor in mine.items()}
            made[name] = compile_plan(remembering(graph, mine))
        return made, both(made), memory
    except GraphError:
        return None


def random_run(
    seed: int, executor: str | Executor, decide: Callable[[Course, int], Goal]
) -> tuple[object, list[Turned]]:
    """What all ops and states come to in a run that goes over now and then, and where it did."""
    found = random_plans(seed)
    if found is None:
        return None, []
    made, ways, memory = found
    for tensor in memory.values():
        tensor.zero_()
    states = {name: plain().zero_() for plan in made.values() for name in plan.graph.states}
    course = Course(made, ways, "a", lambda step: decide(course, step))
    run(made["a"], executor=executor, steps=2 * STEPS, states=states, course=course)
    return [(n, t.tolist()) for n, t in (memory | states).items()], [*course.turned]


def agree(seed: int, executor: Recording) -> int:
    """How many steps of segments were replayed; the run gave what the serial one gives."""
    found, turned = random_run(seed, executor, now_and_then(seed))
    if not turned:
        return 0
    assert (found, turned) == random_run(seed, "serial", where(turned)), seed
    return sum(each.replayed for each in captures(executor).counts.values())


SAMPLE = (1, 3)
"""In the second the plan after reads what the plan before makes for ops of the same step alone."""


@pytest.mark.parametrize("made", RECORDING, ids=["tape", "cpu", "one thread"])
def test_random_runs_that_replay_give_what_the_serial_run_gives(
    made: Callable[[], Recording],
) -> None:
    assert sum(agree(seed, made()) for seed in SAMPLE) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("made", RECORDING, ids=["tape", "cpu", "one thread"])
@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_many_random_runs_that_replay_give_what_the_serial_run_gives(
    made: Callable[[], Recording], start: int
) -> None:
    assert sum(agree(seed, made()) for seed in range(30_000 + start, 30_250 + start)) > 1000
