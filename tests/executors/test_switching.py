"""Runs that switch between plans: every executor gives what the serial program gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
import torch

from stepweave.executors.blocking import Blocking
from stepweave.executors.concurrent import ConcurrentRun
from stepweave.executors.course import Course, Goal, Turned
from stepweave.executors.report import RunReport
from stepweave.executors.run import EXECUTORS, Executor, run
from stepweave.graph.errors import GraphError, UnsoundPlan
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.switching import switch_plans
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.switch import Switch
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.histories import recorded_states, recording
from stepweave.testing.switched_graphs import random_switch
from stepweave.timelines.measured import measured
from stepweave.views.traced import Trace

STEPS = 60
SAMPLE = (0, 1, 2, 3, 13)  # graphs that can switch, and whose plans bound no op at a great distance
SLOTS = 22_848  # its plans have fewer slots than one thread needs, and no order keeps to them
SWAPPED = 30_987  # of one plan two ops change places on the way, as only their listing orders them
SOON = 8  # steps from a decision to the switch
Plans = Mapping[str, Plan]
Switches = Mapping[tuple[str, str], Switch]


def both(plans: Plans) -> Switches:
    """The switch from each to each. Raises `GraphError` where there is none."""
    pairs = [(one, other) for one in plans for other in plans if one != other]
    return {(one, other): switch_plans(plans[one], plans[other]) for one, other in pairs}


def random_plans(seed: int) -> tuple[Plans, Switches] | None:
    try:
        first, then = map(recording, random_switch(seed, keyed=False))
        plans = {"a": compile_plan(first), "b": compile_plan(then)}
        return plans, both(plans)
    except GraphError:
        return None


def follow(
    executor: str | Executor,
    plans: Plans,
    switches: Switches,
    decide: Callable[[Course, int], Goal],
    steps: int | None = STEPS,
) -> tuple[RunReport, list[Turned], dict[str, object]]:
    """A run that goes over as `decide` says; the switches; the states at the end."""
    course = Course(plans, switches, "a", lambda step: decide(course, step))
    states = {name: s for plan in plans.values() for name, s in recorded_states(plan.graph).items()}
    kept = sorted({name for plan in plans.values() for name in plan.graph.values})
    report = run(
        plans["a"],
        executor=executor,
        steps=steps,
        states=states,
        keep=kept,
        course=course,
        watchdog_s=120,
    )
    digests = {name: state.digest for name, state in states.items()}  # type: ignore[attr-defined]
    return report, [*course.turned], digests


def now_and_then(seed: int) -> Callable[[Course, int], Goal]:
    """Go over at random, and late enough for the serial program too."""
    random = Random(seed)

    def decide(course: Course, step: int) -> Goal:
        other = "b" if course.at == "a" else "a"
        return Goal(other if random.random() < 0.3 else course.at, step + SOON)

    return decide


def where(turned: Sequence[Turned]) -> Callable[[Course, int], Goal]:
    """Go over at just these steps."""

    def decide(course: Course, step: int) -> Goal:
        left = turned[len(course.turned) :]
        return Goal(left[0].after, left[0].step) if left else Goal(course.at)

    return decide


def agree(seed: int, executor: str | Executor) -> int:
    """How often a random run switched; it gave what the serial run that switches there gives."""
    found = random_plans(seed)
    if found is None:
        return 0
    report, turned, states = follow(executor, *found, now_and_then(seed))
    expected, same, others = follow("serial", *found, where(turned))
    assert same == turned, seed
    assert report.steps == expected.steps == STEPS
    assert report.kept == expected.kept, seed
    assert states == others, seed
    return len(turned)


def test_every_executor_switches_to_what_the_serial_program_gives() -> None:
    assert agree(SLOTS, "threads") >= 2
    assert agree(SWAPPED, "threads") >= 2
    assert sum(agree(seed, "threads") for seed in SAMPLE) >= 8
    assert sum(agree(seed, Deferred(seed)) for seed in SAMPLE) >= 8
    for name in ("serial", "threads"):
        waiting = Blocking(EXECUTORS[name], torch.device("cpu"))  # as on a GPU
        assert agree(SAMPLE[0], waiting) >= 1


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(0, 3000, 500))
def test_every_executor_switches_on_many_graphs(start: int) -> None:
    seeds = range(20_000 + start, 20_500 + start)
    assert sum(agree(seed, "threads") for seed in seeds) >= 300
    assert sum(agree(seed, Deferred(seed)) for seed in seeds) >= 300


def test_a_run_refuses_a_switch_that_is_not_sound() -> None:
    found = random_plans(SAMPLE[1])
    assert found is not None
    plans, switches = found
    loose = {pair: replace(switch, waits=()) for pair, switch in switches.items()}
    assert any(switch.waits for switch in switches.values())
    for executor in ("serial", "threads"):
        with pytest.raises(UnsoundPlan, match="of step s"):
            follow(executor, plans, loose, lambda course, step: Goal(course.at), steps=1)


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_plan_stays_until_it_has_written_all_that_the_next_goes_back_for(executor: str) -> None:
    def plan(carry: int) -> Plan:
        def note(context: OpContext) -> None:
            context.state("seen").append((context.step, context.read("v")))
            context.write("v", context.step)

        op = Op((Read("v", carry),), ("v", "seen"), run=note)
        value = Value("v", storage="slots", slots=6, initial=-1)
        return compile_plan(StepGraph.build([Node("n", (op,))], [value], ["seen"]))

    plans = {"far": plan(5), "near": plan(1)}
    seen: list[tuple[int, int]] = []
    course = Course(
        plans, both(plans), "far", lambda step: Goal("near" if course.at == "far" else "far")
    )
    run(plans["far"], executor=executor, steps=50, states={"seen": seen}, course=course)
    begins = [(0, "far"), *((each.step, each.after) for each in course.turned)]
    assert len(begins) >= 6, "it goes over as soon as it can"
    for step, read in seen:
        at = next(name for begin, name in reversed(begins) if begin <= step)
        assert read == max(-1, step - (5 if at == "far" else 1)), step


def test_a_thread_that_begins_late_follows_every_switch_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan(actor: str) -> Plan:
        def count(context: OpContext) -> None:
            context.state("counted").append(context.read("batch"))

        nodes = [
            Node("begin", (Op(writes=("batch",), run=lambda c: c.write("batch", c.step)),)),
            Node("count", (Op((Read("batch"),), ("counted",), run=count),), actor=actor),
        ]
        return compile_plan(StepGraph.build(nodes, [Value("batch")], ["counted"], name=actor))

    plans = {"together": plan("driver"), "apart": plan("helper")}
    counted: list[object] = []
    twice = threading.Event()
    course = Course(
        plans,
        both(plans),
        "together",
        lambda step: Goal(("apart", "together")[min(len(course.turned), 1)]),
        lambda turned: twice.set() if turned.after == "together" else None,
    )

    def begin(self: ConcurrentRun, actor: str) -> None:
        if actor == "helper":
            assert twice.wait(60)
        work(self, actor)

    work = ConcurrentRun._work_host
    monkeypatch.setattr(ConcurrentRun, "_work_host", begin)
    report = run(
        plans["together"],
        executor="threads",
        steps=60,
        states={"counted": counted},
        course=course,
        watchdog_s=120,
    )
    assert [turned.after for turned in course.turned] == ["apart", "together"]
    assert (report.steps, counted) == (60, [*range(60)])


# --- what a trace says of it ---------------------------------------------------------------------


def two_actors() -> dict[str, Plan]:
    """The same ops, of which one is on the driver or on a thread of its own."""

    def write(name: str) -> Callable[[OpContext], None]:
        return lambda context: context.write(name, context.step)

    def plan(actor: str) -> Plan:
        nodes = [
            Node("begin", (Op(writes=("batch",), run=write("batch"), cost_us=5.0),)),
            Node(
                "mask",
                (Op((Read("batch"),), ("bits",), run=write("bits"), cost_us=9.0),),
                actor=actor,
            ),
            Node("end", (Op((Read("bits"),), ("state",), run=lambda context: None, cost_us=5.0),)),
        ]
        values = [Value("batch"), Value("bits", storage="slots")]
        return compile_plan(StepGraph.build(nodes, values, ["state"], name=actor))

    return {"together": plan("driver"), "apart": plan("masks")}


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_trace_says_which_plan_ran_a_step_and_ops_count_for_the_actor_of_their_plan(
    executor: str,
) -> None:
    plans = two_actors()
    goals = [Goal("apart", 20), Goal("together", 60)]

    def decide(step: int) -> Goal:
        return goals[min(len(course.turned), 1)] if len(course.turned) < 2 else Goal(course.at)

    course = Course(plans, both(plans), "together", decide)
    report = run(
        plans["together"],
        executor=executor,
        steps=90,
        states={"state": []},
        trace=True,
        course=course,
    )
    begins = [turned.step for turned in course.turned]
    assert len(begins) == 2
    assert report.legs == ((0, "together"), (begins[0], "apart"), (begins[1], "together"))
    assert [name for name, _ in report.parts] == ["together", "apart", "together"]
    assert [step for _, steps in report.parts for step in steps] == [*range(90)]
    for name, steps in report.parts:
        part = report.of_steps(steps)
        ops = plans[name].graph.vertices
        assert {(event.op, event.actor) for event in part.events} == {
            (op, vertex.actor) for op, vertex in ops.items()
        }
        assert len(part.events) == len(ops) * len(steps)
        assert measured(plans[name], part, serial=executor == "serial").steps == len(steps)
    trace = Trace.of_run(plans, report, executor=executor)
    longest = max(report.parts, key=lambda part: len(part[1]))
    assert (trace.plan, trace.first) == (plans[longest[0]], longest[1].start)
    assert [each["plan"] for each in trace.to_json()["plans"]] == ["together", "apart", "together"]


def test_a_run_of_one_plan_has_no_parts() -> None:
    plans = two_actors()
    course = Course(plans, both(plans), "apart", lambda step: Goal("apart"))
    report = run(plans["apart"], steps=30, states={"state": []}, trace=True, course=course)
    assert report.parts == (("apart", range(30)),)
    trace = Trace.of_run(plans, report, executor="serial")
    assert (trace.plan, trace.parts, trace.first) == (plans["apart"], (), 0)
    alone = run(plans["apart"], steps=3, states={"state": []})
    assert (alone.legs, alone.parts) == ((), ())
