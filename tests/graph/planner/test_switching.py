"""Switches between plans: sound, with no wait too many, and every fault in one is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest

from stepweave.graph.errors import DeadlockError, GraphError, UnsoundPlan
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.crossings import Pair
from stepweave.graph.planner.splice import Window
from stepweave.graph.planner.switching import switch_plans
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.switch import Instance, Switch
from stepweave.graph.verifier.switches import switch_violations, verify_switch
from stepweave.testing.switched_graphs import random_switch

from ..switch_oracle import Around

# Whose plans bound no op at a great distance; those of 78 and 88 have leases. In the last two
# actors go over long before step 0, and a stream would take a skipped op of the plan before long
# after it.
SAMPLE = (1, 2, 3, 13, 15, 23, 78, 88, 10_981, 11_163)


def switch_of(seed: int) -> Switch | None:
    """A random switch, if both graphs have a plan and one can follow the other."""
    try:
        before, after = map(compile_plan, random_switch(seed))
        return switch_plans(before, after)
    except DeadlockError:
        return None
    except GraphError as error:
        if error.code != "SW-SWITCH":
            raise
        return None


def doctored(switch: Switch) -> Iterator[Switch]:
    """The switch with one thing changed: a wait, the order on an actor, the delay, the padding."""
    for number, wait in enumerate(switch.waits):
        for change in (
            replace(wait, target=wait.target._replace(step=wait.target.step + 1)),
            replace(wait, source=wait.source._replace(step=wait.source.step - 1)),
        ):
            yield replace(
                switch, waits=(*switch.waits[:number], change, *switch.waits[number + 1 :])
            )
    for actor, ops in switch.programs.items():
        for place, (u, v) in enumerate(pairwise(ops)):
            if u.part != v.part and min(abs(u.step), abs(v.step)) < 2:
                turned = (*ops[:place], v, u, *ops[place + 2 :])
                yield replace(switch, programs={**switch.programs, actor: turned})
    yield replace(switch, delay=switch.delay - 1)
    yield replace(switch, delay=switch.delay + 1)


def judge(seeds: Iterable[int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        switch = switch_of(seed)
        if switch is None:
            counts["none"] += 1
            continue
        counts["switches"] += 1
        counts["waits"] += len(switch.waits)
        verify_switch(switch)
        assert not Around(switch).unsound(), seed
        for wait in switch.waits:
            less = replace(switch, waits=tuple(w for w in switch.waits if w is not wait))
            assert switch_violations(less), (seed, wait)
            bounds = all(each.hazard == "BOUND" for each in wait.protects)
            assert bounds or Around(less).unsound(), (seed, wait)
        for other in doctored(switch):
            refused = switch_violations(other)
            raced = [each for each in refused if each.code in RACES]
            if not any(each.code == "SW-ACTORS" for each in refused):
                assert bool(raced) == Around(other).unsound(), (seed, raced)
            counts["doctored"] += 1
            counts["found"] += bool(refused)
        judge_words(seed, switch, counts)
    return counts


RACES = {"SW-DEADLOCK", "SW-LAUNCH", "SW-HOST-ORDER", "SW-SWITCH"} | {
    f"SW-{hazard}-{u}-{v}"
    for hazard, u, v in product(("RAW", "WAR", "WAW"), ("HOST", "DEVICE"), ("HOST", "DEVICE"))
}


def judge_words(seed: int, switch: Switch, counts: Counter[str]) -> None:
    """A lease that is shorter, an end that is sooner: untrue, and found."""
    around = Around(switch, far=14 + switch.over)
    for number, lease in enumerate(switch.leases):
        if lease.steps == 1:
            continue
        less = replace(lease, steps=lease.steps - 1)
        short = (*switch.leases[:number], less, *switch.leases[number + 1 :])
        assert any(v.code == "SW-LEASE" for v in switch_violations(replace(switch, leases=short)))
        users = [
            (u, v)
            for u, v in product(switch.before.graph.vertices, switch.after.graph.vertices)
            if _class(switch.before, u, lease.state) == lease.source
            and _class(switch.after, v, lease.state) == lease.target
            and _writes(switch, u, v, lease.state)
        ]
        pairs = [
            (Instance(0, u, i), Instance(1, v, max(0, i + less.steps)))
            for u, v in users
            for i in range(-less.steps - 3, 0)
        ]
        assert any(not around.before(u, v) or around.turn(u) > around.turn(v) for u, v in pairs), (
            seed,
            lease,
        )
        counts["leases"] += 1
    assert around.is_over(switch.over), seed
    if switch.over:
        assert not around.is_over(switch.over - 1), seed
        early = replace(switch, over=switch.over - 1)
        assert any(v.code == "SW-BOUND" for v in switch_violations(early)), seed
        counts["over"] += 1


def _class(plan: Plan, op: str, state: str) -> str | None:
    declared = plan.graph.vertices[op].op
    touches = state in declared.writes or any(read.name == state for read in declared.reads)
    return declared.class_of(state) if touches else None


def _writes(switch: Switch, u: str, v: str, state: str) -> bool:
    first, then = switch.before.graph.vertices[u].op, switch.after.graph.vertices[v].op
    return state in first.writes or state in then.writes


def test_switches_are_sound_need_each_wait_and_every_fault_in_one_is_found() -> None:
    counts = judge(SAMPLE)
    assert counts["switches"] >= 4
    assert counts["waits"] >= 1
    assert counts["found"] >= 10


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(0, 8400, 400))
def test_many_switches_are_sound_need_each_wait_and_every_fault_in_one_is_found(start: int) -> None:
    counts = judge(range(10_000 + start, 10_400 + start))
    assert counts["switches"] >= 100
    assert counts["waits"] >= 20
    assert counts["leases"] >= 5


def loop(
    depth: int, mask_on: str = "driver", slots: int | None = None, forward_us: float = 1000
) -> Plan:
    """schedule, forward on a stream, a mask, sample, commit, as a decode step has them."""
    ahead = min(1, depth - 1) - (depth - 1)
    behind = min(1, depth - 1)
    nodes = [
        Node("schedule", (Op(writes=("batch", "table"), cost_us=100),), offset=ahead),
        Node(
            "forward",
            (Op(reads=(Read("batch"),), cost_us=10),),
            (Op(reads=(Read("token", 1),), writes=("logits", "kv"), cost_us=forward_us),),
            stream="compute",
            offset=behind,
        ),
        Node(
            "mask",
            (Op(reads=(Read("batch"),), writes=("mask", "matchers"), cost_us=300),),
            offset=behind,
            actor=mask_on,
        ),
        Node(
            "sample",
            (Op(cost_us=10),),
            (Op(reads=(Read("logits"), Read("mask")), writes=("token",), cost_us=100),),
            stream="compute",
            offset=behind,
        ),
        Node(
            "copy",
            (Op(cost_us=10),),
            (Op(reads=(Read("token"),), writes=("copied",), cost_us=20),),
            stream="copy",
            offset=behind,
        ),
        Node(
            "commit",
            (Op(reads=(Read("copied"), Read("batch")), writes=("table", "matchers"), cost_us=50),),
            offset=behind,
        ),
    ]
    values = [
        Value("batch"),
        Value("logits", place="device", storage="fresh"),
        Value("mask", place="pinned", storage="slots"),
        Value("token", place="device", storage="slots", slots=slots),
        Value("copied", place="pinned", storage="slots"),
    ]
    graph = StepGraph.build(nodes, values, ["table", "kv", "matchers"], name=f"depth_{depth}")
    return compile_plan(graph)


def test_a_plan_that_follows_itself_needs_no_wait_and_loses_no_time() -> None:
    for depth in (1, 2, 3):
        plan = loop(depth)
        switch = switch_plans(plan, plan)
        assert switch.waits == ()
        assert switch.costs_us <= 0.0


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1)])
def test_another_depth_is_entered_without_draining(before: int, after: int) -> None:
    switch = switch_plans(loop(before), loop(after))
    verify_switch(switch)
    assert not Around(switch).unsound()
    if min(before, after) > 1:  # between two plans that overlap steps, steps overlap throughout
        assert switch.costs_us < switch.drained_us


def test_no_op_comes_to_a_step_before_an_earlier_one() -> None:
    """Where a device has little to do, steps of the deeper plan would be least late like that."""
    before, after = loop(1, forward_us=20), loop(3, forward_us=20)
    switch = switch_plans(before, after)
    assert switch.delay >= 0
    for op in before.graph.vertices:
        offsets = [plan.graph.vertices[op].offset for plan in (before, after)]
        assert -1 + offsets[0] <= offsets[1] + switch.delay, op
    found = switch_violations(replace(switch, delay=-1))
    assert found[0].code == "SW-SWITCH"
    assert "schedule.host of step s comes before schedule.host of step s-1" in str(found[0])
    assert Around(replace(switch, delay=-1)).backward()


def test_the_window_is_longer_where_the_plan_after_binds_its_ops_at_a_great_distance() -> None:
    before, after = map(compile_plan, random_switch(31_384, keyed=False))
    switch = switch_plans(before, after)
    assert switch.over > Window(Pair(before, after)).last
    verify_switch(switch)


def test_a_node_goes_to_a_thread_of_its_own() -> None:
    switch = switch_plans(loop(2), loop(2, mask_on="masks"))
    verify_switch(switch)
    assert "masks" in switch.programs
    assert not Around(switch).unsound()


def test_versions_that_the_plan_before_does_not_keep_refuse_the_switch() -> None:
    def of(carry: int, slots: int) -> Plan:
        reads = Op(reads=(Read("v", carry),), writes=("v", "s"))
        value = Value("v", storage="slots", slots=slots)
        return compile_plan(StepGraph.build([Node("n", (reads,))], [value], ["s"]))

    with pytest.raises(GraphError, match="Pin 3 slots of 'v'") as error:
        switch_plans(of(1, 2), of(3, 4))
    assert error.value.code == "SW-SWITCH"
    switch_plans(of(3, 4), of(1, 2))


def test_plans_that_list_their_nodes_in_two_orders_cannot_follow_each_other() -> None:
    plan, other = (
        compile_plan(StepGraph.build([Node(name) for name in names], []))
        for names in (("a", "b"), ("b", "a"))
    )
    with pytest.raises(GraphError, match="lists 'a' before 'b'"):
        switch_plans(plan, other)


def test_a_witness_that_proves_nothing_is_found() -> None:
    switch = switch_plans(loop(1), loop(2))
    first = replace(switch.crossings[0], witness=switch.crossings[0].witness[:1])
    with pytest.raises(UnsoundPlan, match="witness"):
        verify_switch(replace(switch, crossings=(first, *switch.crossings[1:])))


@pytest.mark.parametrize("latency_us", [None, 5.0])
def test_launches_that_take_a_while_are_no_order_of_their_own(latency_us: float | None) -> None:
    """What a device op is followed by also begins so long after its launch: a delay, no arc."""

    def plan(ahead: int) -> Plan:
        forward = Op((Read("staged"), Read("sampled", 1)), ("sampled",), cost_us=4000.0)
        nodes = [
            Node("schedule", (Op((), ("batch",), cost_us=300.0),), offset=-ahead),
            Node(
                "forward",
                (Op((Read("batch"),), ("staged",), cost_us=150.0),),
                (forward,),
                stream="compute",
                launch_latency_us=latency_us,
            ),
            Node(
                "copy",
                (Op(cost_us=20.0),),
                (Op((Read("sampled"),), ("host",), cost_us=15.0),),
                stream="copy",
                launch_latency_us=latency_us,
            ),
            Node(
                "commit",
                (Op((Read("host"), Read("batch", 1), Read("table")), ("table",), cost_us=100.0),),
                offset=1,
                actor="helper",
            ),
        ]
        values = [
            Value("batch"),
            *(Value(name, "pinned", "slots") for name in ("staged", "host")),
            Value("sampled", "device", "slots"),
        ]
        return compile_plan(StepGraph.build(nodes, values, ["table"], order="keep"))

    for before, after in product(map(plan, range(3)), repeat=2):
        verify_switch(switch_plans(before, after))
