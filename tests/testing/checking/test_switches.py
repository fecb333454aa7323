"""Checking mode over switches: the order of two ops of two plans, and what is in none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from stepweave.executors.course import Course, Goal, Turned
from stepweave.executors.errors import NodeFailure
from stepweave.executors.run import run
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.switch import Instance, Switch
from stepweave.graph.verifier.switch_run import SwitchRun
from stepweave.testing.checking.across import Across
from stepweave.testing.checking.clocks import Clocks
from stepweave.testing.checking.legs import Legs
from stepweave.testing.checking.mode import Strict
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.histories import recorded_states
from stepweave.testing.unverified import run_unverified
from tests.executors.test_switching import agree, both, random_plans
from tests.graph.switch_oracle import Around

SAMPLE = (1, 2, 3)  # graphs that can switch
RESTS = 30_965  # an actor of the one plan, which writes a state, does nothing in the other
RACES = {"RAW", "WAR", "WAW"}


def clocked(switch: Switch) -> Across:
    return Across(switch, (Clocks(switch.before), Clocks(switch.after)))


def judge(seed: int) -> Counter[str]:
    """Which ops the clocks have in order, against all that arcs reach."""
    found: Counter[str] = Counter()
    plans = random_plans(seed)
    if plans is None:
        return found
    switch = plans[1]["a", "b"]
    across, around = clocked(switch), Around(switch, far=20 + switch.over)

    def reached(u: Instance, v: Instance) -> bool:
        return bool(around.followers[around.number[u]] >> around.number[v] & 1)

    first, then = (
        [Instance(part, op, at) for op in plan.graph.vertices for at in steps]
        for part, (plan, steps) in enumerate(
            zip(switch.plans, (range(-3, 0), range(3)), strict=True)
        )
    )
    for u, v in [*product(first, then), *product(then, first)]:
        assert across.before(u, v) == reached(u, v), (seed, u, v)
        found["in order" if reached(u, v) else "not"] += 1
    settled = across.settled
    assert settled is not None
    for step in {settled, max(0, settled - 1)}:
        last = [Instance(0, op, -1) for op in switch.before.graph.vertices]
        ops = [Instance(1, op, step) for op in switch.after.graph.vertices]
        assert all(reached(u, v) for u, v in product(last, ops)) == (step == settled), seed
    return found


def goes_over(plans: dict[str, Plan], switch: Switch, executor: Strict) -> None:
    """A run that goes from `a` to `b`, by this switch."""
    course = Course(
        plans, {("a", "b"): switch}, "a", lambda step: Goal("b" if step > 8 else course.at)
    )
    states = {name: s for plan in plans.values() for name, s in recorded_states(plan.graph).items()}
    run_unverified(plans["a"], executor, RunArguments(30, states, course=course))
    assert len(course.turned) == 1


def doctored(seeds: Iterable[int]) -> Counter[str]:
    """A switch without one of its waits is found, though the run went well."""
    found: Counter[str] = Counter()
    for seed in seeds:
        made = random_plans(seed)
        if made is None:
            continue
        plans, switch = dict(made[0]), made[1]["a", "b"]
        goes_over(plans, switch, Strict())
        for wait in switch.waits:
            if not RACES & {each.hazard for each in wait.protects}:
                continue
            less = replace(switch, waits=tuple(each for each in switch.waits if each is not wait))
            with pytest.raises(NodeFailure) as caught:
                goes_over(plans, less, Strict())
            assert getattr(caught.value.__cause__, "code", "") == "SW-RACE", (seed, wait)
            found["without a wait"] += 1
        found["as it is"] += 1
    return found


def test_clocks_over_a_switch_say_what_all_its_orders_reach() -> None:
    found = sum(map(judge, SAMPLE), Counter[str]())
    assert found["in order"] >= 300
    assert found["not"] >= 300


def test_a_switch_without_a_wait_is_found_though_the_run_went_well() -> None:
    found = doctored((39, 60, 63, 31_037))  # in the last the wait orders two launches to a stream
    assert found["as it is"] == 4
    assert found["without a wait"] >= 7


def test_what_streams_run_by_their_launches_is_gone_through_once_for_each_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: Counter[str] = Counter()

    def counted(name: str) -> None:
        method = getattr(SwitchRun, name)

        def call(run: SwitchRun) -> object:
            counts[name] += 1
            return method(run)

        monkeypatch.setattr(SwitchRun, name, call)

    counted("_chains")
    counted("_run")
    plans = random_plans(31_037)
    assert plans is not None
    switch = plans[1]["a", "b"]
    for wait in switch.waits:
        clocked(replace(switch, waits=tuple(w for w in switch.waits if w is not wait)))
    assert counts["_run"] > len(switch.waits), "in some the launches are not ordered"
    assert counts["_chains"] == counts["_run"]


def test_runs_that_switch_to_and_fro_pass() -> None:
    assert sum(agree(seed, Strict("threads")) for seed in SAMPLE) >= 8
    assert agree(SAMPLE[1], Strict(Deferred(1))) >= 1
    assert agree(RESTS, Strict("threads")) >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(0, 1500, 300))
def test_many_runs_that_switch_pass_and_every_wait_that_they_lack_is_found(start: int) -> None:
    seeds = range(30_000 + start, 30_300 + start)
    assert sum(map(judge, seeds), Counter[str]())["not"] >= 300
    assert doctored(seeds)["without a wait"] >= 10
    assert sum(agree(seed, Strict("threads")) for seed in seeds) >= 200


@pytest.mark.parametrize(
    ("less", "ended"),
    [({}, True), ({"waits": ()}, False), ({"over": -1}, False)],
    ids=["as it is", "without what bounds it", "said to be over too soon"],
)
def test_an_op_comes_after_a_plan_long_before_if_the_switch_is_over_when_it_says_so(
    less: dict[str, object], ended: bool
) -> None:
    def plan(*more: str) -> Plan:
        nodes = [Node("begin", (Op(writes=("table",)),))]
        nodes += [Node(name, (Op(writes=(name,)),), actor="helper") for name in more]
        return compile_plan(StepGraph.build(nodes, [], ["table", *more]))

    plans = {"more": plan("extra"), "less": plan()}
    switches = dict(both(plans))
    switches["more", "less"] = replace(switches["more", "less"], **less)  # type: ignore[arg-type]
    legs = Legs(plans["more"], Course(plans, switches, "more", lambda step: Goal("more")))
    legs.turn(Turned(20, "more", "less"))
    legs.turn(Turned(40, "less", "more"))
    assert legs.before("extra.host", 19, "begin.host", 41) is ended
    assert legs.before("extra.host", 19, "extra.host", 41) is ended, "of an actor that rested"
    assert not legs.before("begin.host", 41, "extra.host", 19)
    assert legs.serially("extra.host", 19, "begin.host", 41)


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_what_another_plan_still_reads_is_not_poisoned(executor: str) -> None:
    """Of what one plan reads a step later the other reads it three steps later."""
    torch = pytest.importorskip("torch")

    def plan(carry: int) -> Plan:
        def count(context: OpContext) -> None:
            context.state("seen").append(int(context.read("v")))
            context.write("v", torch.tensor(context.step) + 0)

        node = Node("count", (Op((Read("v", carry),), ("v", "seen"), run=count),))
        value = Value("v", storage="slots", slots=4, initial=torch.tensor(-1))
        return compile_plan(StepGraph.build([node], [value], ["seen"], name=f"back_{carry}"))

    plans = {"near": plan(1), "far": plan(3)}
    seen: list[int] = []
    course = Course(
        plans, both(plans), "near", lambda step: Goal("far" if course.at == "near" else "near")
    )
    run(plans["near"], executor=Strict(executor), steps=40, states={"seen": seen}, course=course)
    legs = [*course.turned]
    assert len(legs) >= 4
    for step in range(40):
        at = next((leg.after for leg in reversed(legs) if leg.step <= step), "near")
        assert seen[step] == max(step - (1 if at == "near" else 3), -1), step
