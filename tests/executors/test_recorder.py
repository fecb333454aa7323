"""The recorder: when the ops of the last steps ran, for whoever reads while they run."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from stepweave import compile_plan, node, read, run, step_graph
from stepweave.backends.streams import Moment
from stepweave.executors.recorder import Recorder, RunTimes
from stepweave.executors.report import OpEvent
from stepweave.graph.node import Node, Op
from stepweave.graph.plan import Plan
from stepweave.graph.step_graph import Vertex
from stepweave.testing.devices.recorded_calls import RecordedCalls


@node(writes="batch", cost_us=300)
def schedule(ctx):  # type: ignore[no-untyped-def]
    return ctx.step


@node(stream="compute", writes="token", cost_us=1000)
def forward(batch, last=read("token", 1)):  # type: ignore[no-untyped-def]  # noqa: B008
    return (last or 0) + batch


@pytest.fixture
def plan() -> Plan:
    return compile_plan(step_graph(schedule, forward))


@pytest.mark.parametrize("executor", ["serial", "threads", RecordedCalls()])
def test_it_keeps_the_last_steps_of_each_op(plan: Plan, executor: object) -> None:
    recorder = Recorder(4)
    report = run(plan, executor=executor, steps=10, trace=recorder)  # type: ignore[arg-type]
    assert report.events == ()  # whoever brings a recorder has them there
    steps: dict[str, list[int]] = {}
    for event in recorder.latest.events():
        steps.setdefault(event.op, []).append(event.step)
        assert 0 <= event.start_s <= event.end_s
    assert steps == {op: [6, 7, 8, 9] for op in plan.graph.vertices}


def test_without_a_limit_it_keeps_all_as_a_traced_run_does(plan: Plan) -> None:
    recorder = Recorder()
    run(plan, steps=300, trace=recorder)
    whole = run(plan, steps=300, trace=True)
    assert len(recorder.latest.events()) == len(whole.events) == 300 * len(plan.graph.vertices)


def test_it_can_be_read_from_inside_the_run_and_says_what_has_ended_by_then() -> None:
    recorder = Recorder(3)
    seen: list[list[OpEvent]] = []

    @node(writes="out")
    def look(ctx):  # type: ignore[no-untyped-def]
        seen.append([*recorder.latest.events()])
        return ctx.step

    run(compile_plan(step_graph(look)), executor="threads", steps=6, trace=recorder)
    assert [[event.step for event in each] for each in seen] == [
        [],
        [0],
        [0, 1],
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
    ]


def test_a_run_that_begins_forgets_the_one_before(plan: Plan) -> None:
    recorder = Recorder(8)
    run(plan, steps=8, trace=recorder)
    run(plan, steps=2, trace=recorder)
    assert {event.step for event in recorder.latest.events()} == {0, 1}


@dataclass
class Passing:
    """A stream that has come by only as many of its stamps as `by` says."""

    by: int = 0
    given: list[int] = field(default_factory=list)

    def stamp(self) -> Moment:
        mine = len(self.given)
        self.given.append(mine)
        return lambda: float(mine) if mine < self.by else None


def test_an_op_that_its_stream_has_not_done_yet_is_not_there_yet() -> None:
    stream, times = Passing(), RunTimes(4)
    vertex = Vertex("one", Node("one"), Op(), "device", "compute", 0, 0, None)
    noted = times.stamped(vertex, stream.stamp, None)
    for step in range(2):
        noted(_At(step))  # type: ignore[arg-type]
    found = []
    for stream.by in range(5):
        found.append([event.step for event in times.events()])
    assert found == [[], [], [0], [0], [0, 1]]


@dataclass
class _At:
    step: int


def test_the_end_of_an_op_that_launches_is_the_end_of_its_launches() -> None:
    times = RunTimes()
    vertex = Vertex("one", Node("one"), Op(), "host", "driver", 0, 0, None)
    ends: list[float] = []

    def launch(step: int) -> None:
        [event] = times.events()
        ends.append(event.end_s)

    perform, launching = times.timed(vertex, None), times.launching("one", launch)
    perform(_At(0))  # type: ignore[arg-type]
    launching(0)
    [event] = times.events()
    assert event.end_s > ends[0]
