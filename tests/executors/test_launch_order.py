"""The order of launches on several host threads is in the plan: a launch waits for none."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from stepweave.executors import NodeFailure, concurrent, run
from stepweave.executors.concurrent import run_on
from stepweave.executors.leg import Leg
from stepweave.executors.report import RunReport
from stepweave.executors.run_arguments import RunArguments
from stepweave.executors.workers import Workers
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.unverified import run_unverified


class HeldBack:
    """The launch of `make` comes late: not before the run has failed, where it is to fail."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, ctx: OpContext) -> None:
        if ctx.step == 2:
            assert self.released.wait(60)


def handed_over(held: HeldBack) -> Plan:
    """Thread a launches `make` on stream x, thread b `use` on stream y, which waits for it."""

    def make(ctx: OpContext) -> None:
        ctx.write("made", ctx.step)

    def use(ctx: OpContext) -> None:
        ctx.write("used", ctx.read("made"))

    makes, uses = Op(writes=("made",), run=make), Op((Read("made"),), ("used",), run=use)
    nodes = [
        Node("make", (Op(run=held),), (makes,), actor="a", stream="x"),
        Node("use", (Op(),), (uses,), actor="b", stream="y"),
    ]
    return compile_plan(StepGraph.build(nodes, [Value("made", "device"), Value("used", "device")]))


def without_launch_order(plan: Plan) -> Plan:
    launch = ("make.host", "use.host")
    rest = tuple(wait for wait in plan.waits if (wait.source, wait.target) != launch)
    assert len(rest) == len(plan.waits) - 1
    return replace(plan, waits=rest)


class Calls(RecordedCalls):
    """Lets the late launch go on when the run has failed, which is what ends it."""

    def __init__(self, held: HeldBack) -> None:
        super().__init__()
        self._held = held

    def abort(self) -> None:
        self._held.released.set()


class Threads(Workers):
    def __init__(self, held: HeldBack) -> None:
        super().__init__()
        self._held = held

    def abort(self) -> None:
        self._held.released.set()
        super().abort()

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        return run_on(self, plan, given)


@pytest.mark.parametrize("device", [Calls, Threads])
def test_a_launch_without_its_order_is_an_error_that_names_both_ops(
    device: type[Calls] | type[Threads],
) -> None:
    """However late the other launch comes: nothing but the plan keeps this one back."""
    held = HeldBack()
    plan = without_launch_order(handed_over(held))
    with pytest.raises(NodeFailure) as caught:
        run_unverified(plan, device(held), RunArguments(steps=6, watchdog_s=60))
    assert (caught.value.op, caught.value.step) == ("use.host", 2)
    cause = caught.value.__cause__
    assert isinstance(cause, AssertionError)
    assert str(cause).startswith(
        "'use.device' of step 2 is launched before 'make.device' of step 2, for whose event it "
        "waits"
    )


@pytest.mark.parametrize("device", [Calls, Threads])
def test_with_it_the_launch_comes_when_the_other_has_come(
    device: type[Calls] | type[Threads],
) -> None:
    held = HeldBack()
    held.released.set()
    report = run(handed_over(held), executor=device(held), steps=6, keep=["used"], watchdog_s=60)
    assert report.kept["used"] == list(range(6))


def test_nobody_learns_of_a_phase_before_the_last_one_is_launched() -> None:
    """By the plan, `use` is launched after `make`, since it waits for the first phase of it."""
    crews: list[Leg] = []
    learned: list[int] = []  # steps of which `look` has learned that the first phase is done
    early: list[int] = []

    def second(ctx: OpContext) -> None:
        [tokens] = (q for wait, q in crews[0].tokens.items() if wait.target == "use.host.p0")
        if len(learned) + tokens.qsize() > ctx.step:  # in that order, or one may count twice
            early.append(ctx.step)
        ctx.write("two", ctx.step)

    first = Op(phase="p0", writes=("one",), run=lambda ctx: ctx.write("one", ctx.step))
    look = Op((Read("one"),), phase="p0", run=lambda ctx: learned.append(ctx.step))
    nodes = [
        Node(
            "make",
            (Op(),),
            (first, Op(writes=("two",), phase="p1", run=second)),
            actor="a",
            stream="x",
        ),
        Node("use", (look, Op(phase="p1")), (Op((Read("two"),)),), actor="b", stream="y"),
    ]
    values = [Value("one", "pinned"), Value("two", "device")]
    plan = compile_plan(StepGraph.build(nodes, values))
    assert {(wait.source, wait.target) for wait in plan.waits} >= {
        ("make.device.p0", "use.host.p0"),
        ("make.device.p1", "use.device"),
    }
    assert not any(wait.source == "make.host" for wait in plan.waits), "the first phase implies it"

    def noted(*args: Any) -> Leg:
        crews.append(Leg(*args))
        return crews[-1]

    with patch.object(concurrent, "Leg", noted):
        run(plan, executor=RecordedCalls(), steps=50, watchdog_s=60)
    assert learned == list(range(50))
    assert early == []


def test_of_two_who_wait_for_the_same_one_may_be_told_late() -> None:
    """`look` learns of `make`, and so `use` is launched, before it has been told itself."""
    looked = [threading.Event() for _ in range(50)]

    def make(ctx: OpContext) -> None:
        ctx.write("one", ctx.step)
        ctx.write("two", ctx.step)

    look = Op((Read("one"),), phase="p0", run=lambda ctx: looked[ctx.step].set())
    nodes = [
        Node("make", (Op(),), (Op(writes=("one", "two"), run=make),), actor="a", stream="x"),
        Node("use", (look, Op(phase="p1")), (Op((Read("two"),)),), actor="b", stream="y"),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("one", "pinned"), Value("two", "device")]))
    needless = Wait("make.device", "use.device", 0)  # the planner leaves it to the other one
    plan = replace(plan, waits=(*plan.waits, needless))

    def telling_the_stream_last(*args: Any) -> Leg:
        made = Leg(*args)
        waiting = [wait.target for wait in made.tokens if wait.source == "make.device"]
        puts = dict(zip(waiting, made.signals["make.device"], strict=True))
        assert set(puts) == {"use.host.p0", "use.device"}

        steps = itertools.count(made.program.first)

        def late(token: Any) -> None:
            step = next(steps)
            if 0 <= step < len(looked):
                assert looked[step].wait(60)
            puts["use.device"](token)

        made.signals["make.device"][:] = [puts["use.host.p0"], late]
        return made

    with patch.object(concurrent, "Leg", telling_the_stream_last):
        run(plan, executor=RecordedCalls(), steps=len(looked), watchdog_s=60)
