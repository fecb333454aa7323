"""Work of streams that is done by whoever launches it: when that is so, and that it is alike."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier, Event, Thread

import pytest
import torch

from stepweave.executors import NodeFailure, StuckWait, caller_runs
from stepweave.executors.caller_runs import BEGIN, KEEP, SOON, TRIAL, CallerRuns
from stepweave.executors.concurrent import run_on
from stepweave.executors.report import RunReport
from stepweave.executors.run import Executor, run
from stepweave.executors.run_arguments import RunArguments
from stepweave.executors.threads import OnThreads
from stepweave.executors.workers import Workers, WorkerStream
from stepweave.graph.answers.older_first import older_first
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Comm, Node, Op, OpContext, Run
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.projection import project
from stepweave.graph.ranks import Ranked, ranked_graph
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording
from tests.executors.test_capture import outs, pipeline
from tests.executors.test_recorded import counts
from tests.executors.test_threads import decode, go


class AtRandom(CallerRuns):
    """Goes over in any step, from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)

    def at(self, step: int) -> bool:
        self.now = self._random.random() < 0.5
        return self._random.random() < 0.5


class Always(CallerRuns):
    def begin(self) -> None:
        self.now = True

    def at(self, step: int) -> bool:
        return True


class From(CallerRuns):
    """From that step on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def at(self, step: int) -> bool:
        return step >= self._first


def by_callers(callers: CallerRuns) -> Executor:
    def execute(plan: Plan, given: RunArguments) -> RunReport:
        callers.orders = older_first(plan)
        return run_on(Workers(callers=callers), plan, given, callers=callers)

    return execute


def steps_of(callers: CallerRuns, monkeypatch: pytest.MonkeyPatch, us: dict[bool, float]) -> str:
    """Who does the work of 2,000 steps that take so long without and with callers: `.` or `c`."""
    now, found = 0.0, []
    monkeypatch.setattr(caller_runs, "perf_counter", lambda: now)
    for step in range(2000):
        called = callers.at(step)
        found.append("c" if called else ".")
        slow = step % 7 == 3  # a prompt, say
        now += us[called] * (20 if slow else 1)
    return "".join(found)


@pytest.mark.parametrize(("alone", "kept"), [(0.9, "c"), (1.04, "c"), (1.08, ".")])
def test_callers_do_the_work_unless_threads_make_steps_shorter(
    alone: float, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = steps_of(CallerRuns(), monkeypatch, {False: 1.0, True: alone})
    trial = 2 * ("." * TRIAL + "c" * TRIAL)
    expected, keep = "." * BEGIN, SOON
    while len(expected) < len(found):
        expected += trial + kept * keep
        keep = min(2 * keep, KEEP)
    assert found == expected[: len(found)]


def test_one_turn_by_chance_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now, callers, found = 0.0, CallerRuns(), ""
    monkeypatch.setattr(caller_runs, "perf_counter", lambda: now)
    for step in range(BEGIN + 5 * TRIAL):
        called = callers.at(step)
        found += "c" if called else "."
        now += 3.0 if called and step < BEGIN + 2 * TRIAL else 1.0  # requests came in between
    assert found.endswith("c" * (2 * TRIAL))


def test_the_next_run_goes_on_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    callers, us = CallerRuns(), {False: 1.0, True: 0.5}
    assert steps_of(callers, monkeypatch, us)[150:160] == "c" * 10
    while not callers.now:
        steps_of(callers, monkeypatch, us)
    Workers(callers=callers).open([], frozenset())
    assert callers.at(0)


def test_when_steps_change_so_does_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    now, callers, found = 0.0, CallerRuns(), ""
    monkeypatch.setattr(caller_runs, "perf_counter", lambda: now)
    grown = BEGIN + 2 * (4 * TRIAL + SOON)
    for step in range(grown + SOON + 4 * TRIAL + SOON // 2):
        called = callers.at(step)
        found += "c" if called else "."
        now += (1.0 if called else 1.1) if step < grown else (4.0 if called else 3.0)
    assert found[grown - SOON : grown + 1] == "c" * (SOON + 1)
    assert found.endswith("." * (SOON // 2)), "by callers steps are longer now"


def test_what_is_there_is_settled_before_a_caller_goes_on() -> None:
    """Else the tokens of a step wait for the forward pass of the next one."""
    done: list[tuple[str, int]] = []

    def note(name: str, work: Run) -> Run:
        def run(context: OpContext) -> None:
            work(context)
            done.append((name, context.step))

        return run

    plan = decode(note)
    go(plan, by_callers(Always()), steps=6)
    settled = next(op for op, _ in plan.actors["driver"] if op.startswith("commit.host"))
    for step in range(1, 5):
        assert done.index((settled, step)) < done.index(("forward.device", step + 1))


@pytest.mark.parametrize("callers", [Always(), *map(AtRandom, range(2))], ids=["always", "0", "1"])
def test_whoever_does_the_work_it_gives_what_the_serial_program_gives(callers: CallerRuns) -> None:
    compared = 0
    for seed in range(40):
        try:
            plan = compile_plan(recording(random_step_graph(seed)))
            expected = go(plan, "serial", steps=7)
        except StepweaveError:
            continue  # no plan, or no serial program
        assert go(plan, by_callers(callers), steps=7).kept == expected.kept, f"seed {seed}"
        compared += 1
    assert compared >= 20


def test_what_one_recorded_the_other_replays() -> None:
    plan = pipeline()
    expected = outs(plan)
    for seed in range(4):
        executor = OnThreads()
        executor._callers = AtRandom(seed)
        assert outs(plan, executor) == expected
        assert counts(executor).replayed >= 1


class Asked(Exception):
    """Somebody asks who does the work."""


class NotToBeAsked(CallerRuns):
    def at(self, step: int) -> bool:
        raise Asked


def test_streams_keep_their_threads_where_operations_are_split_among_some() -> None:
    plan = pipeline()
    expected = outs(plan)
    for threads in (2, 1):
        torch.set_num_threads(threads)
        executor = OnThreads()
        executor._callers = NotToBeAsked()
        if threads == 2:
            assert outs(plan, executor) == expected
        else:
            with pytest.raises(NodeFailure, match="Asked"):
                outs(plan, executor)


def test_what_fails_on_its_caller_is_told_as_on_a_thread() -> None:
    def around(name: str, work: Run) -> Run:
        def fail(context: OpContext) -> None:
            if name == "forward.device" and context.step == 3:
                raise ValueError("boom")
            work(context)

        return fail

    plan, said = decode(around), []
    executors: list[str | Executor] = ["threads", by_callers(Always())]
    for executor in executors:
        with pytest.raises(NodeFailure, match=r"'forward.device' failed in step 3.*boom") as caught:
            go(plan, executor, steps=9)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_who_goes_over_to_doing_the_work_while_an_op_hangs_is_let_go_by_an_abort() -> None:
    """Whether the abort comes before the wait for the thread, or while that lasts."""
    began, released = Event(), Event()
    stream = WorkerStream("hangs", None, From(1))

    def hang(_: int) -> None:
        began.set()
        released.wait()

    stream.run(hang, 0, "n")
    began.wait()
    stream.abort()
    done: list[int] = []
    caller = Thread(target=stream.run, args=(done.append, 1, "n"), daemon=True)
    caller.start()
    caller.join(timeout=10)
    let_go = not caller.is_alive()
    released.set()
    stream.end()
    caller.join()
    stream.thread.join()
    assert let_go
    assert done == [1]


def test_a_caller_that_waits_for_an_event_says_for_which_op() -> None:
    released = Event()

    def around(name: str, work: Run) -> Run:
        def hang(context: OpContext) -> None:
            if (name, context.step) == ("forward.device", 2):
                released.wait(timeout=10)
            work(context)

        return hang

    class CopiesByCallers(Workers):
        def open(
            self, streams: Sequence[str], urgent: frozenset[str]
        ) -> Mapping[str, WorkerStream]:
            super().open(streams, urgent)["copy"]._callers = Always()
            return self._streams

    def execute(plan: Plan, given: RunArguments) -> RunReport:
        return run_on(CopiesByCallers(), plan, given)

    plan, before = decode(around), {*threading.enumerate()}
    states = recorded_states(plan.graph)
    try:
        with pytest.raises(StuckWait) as caught:
            run(plan, executor=execute, steps=9, states=states, watchdog_s=0.2)
    finally:
        released.set()
        for thread in {*threading.enumerate()} - before:
            thread.join()
    assert (caught.value.op, caught.value.awaited) == ("copy.host", "forward.device")
    assert caught.value.activity["compute"] == "runs 'forward.device' of step 2"


def test_ranks_that_launch_their_meetings_in_other_orders_do_not_block_each_other() -> None:
    """On two streams that is no matter, unless a launch would last as long as its meeting."""
    barriers = {name: Barrier(2, timeout=3) for name in "ab"}

    def meeting(name: str) -> Ranked:
        def meet(_: OpContext) -> None:
            barriers[name].wait()

        comm = Comm(name, "collective", (0, 1), name, concurrent=True)
        return Ranked(Node(name, device=(Op(run=meet),), stream=name), comm=comm)

    other = {1: ["b", "a"]}
    graph = ranked_graph([meeting("a"), meeting("b")], [], ranks=2, listing=other, order="keep")
    plan = compile_plan(graph)

    def rank(number: int) -> int:
        executor = OnThreads()
        executor._callers = Always()
        return go(project(plan, number), executor, steps=4).steps

    with ThreadPoolExecutor() as both:
        assert [*both.map(rank, range(2))] == [4, 4]
