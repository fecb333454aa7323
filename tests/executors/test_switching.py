"""Runs that switch between plans: every executor gives what the serial program gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest

from stepweave.executors.course import Course, Goal, Turned
from stepweave.executors.report import RunReport
from stepweave.executors.run import Executor, run
from stepweave.graph.errors import GraphError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.switching import switch_plans
from stepweave.graph.switch import Switch
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.histories import recorded_states, recording
from stepweave.testing.switched_graphs import random_switch

STEPS = 60
SAMPLE = (0, 1, 2, 3, 13)  # graphs that can switch, and whose plans bound no op at a great distance
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
    assert sum(agree(seed, "threads") for seed in SAMPLE) >= 8
    assert sum(agree(seed, Deferred(seed)) for seed in SAMPLE) >= 8


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(0, 3000, 500))
def test_every_executor_switches_on_many_graphs(start: int) -> None:
    seeds = range(20_000 + start, 20_500 + start)
    assert sum(agree(seed, "threads") for seed in seeds) >= 300
    assert sum(agree(seed, Deferred(seed)) for seed in seeds) >= 300
