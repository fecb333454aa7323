"""When a key of a pool may change hands."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stepweave.graph.answers.leases import explain_lease, leases_in_words
from stepweave.graph.answers.whatif import without_classes
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Op, State
from stepweave.graph.plan import Lease, Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.leases import pool_leases
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from stepweave.testing import decode_step
from tests.graph.build import device, host, op, value
from tests.graph.shipped_plans import shipped_plan

OWN = {("owner", "owner"): 1}


def keyed(name: str, *leases: tuple[str, str, int]) -> State:
    return State(name, keys="keys", leases=leases)


def of(users: str, each: Op) -> Op:
    """The op as one of a class of users of `s`."""
    return replace(each, classes=(("s", users),))


def two_streams(*leases: tuple[str, str, int], cost: float = 40.0) -> StepGraph:
    """A copy and a computation that nothing but keys has in common."""
    return StepGraph.build(
        [
            device("copy", op(cost=1), of("copy", op("", "s", cost)), stream="one"),
            device("work", op(cost=1), op("s", "", 100), stream="two"),
        ],
        [],
        [keyed("s", *leases)],
        order="keep",
    )


def searched(*leases: tuple[str, str, int]) -> StepGraph:
    """Two copies beside a computation, with a driver whose order is searched."""
    return StepGraph.build(
        [
            host("schedule", op("requests", "batch requests", 100)),
            device("out", op("batch", "", 15), of("copy", op("s", "", 400)), stream="one"),
            device("back", op("batch", "", 15), of("copy", op("", "s", 400)), stream="one"),
            device("work", op("batch", "", 40), op("s", "s token", 1000), stream="two"),
            host("commit", op("batch token requests", "requests", 80), offset=1),
        ],
        [value("batch"), value("token", "pinned")],
        ["requests", keyed("s", *leases)],
    )


def steps(plan: Plan) -> dict[tuple[str, str], int]:
    return {(each.source, each.target): each.steps for each in plan.leases}


# --- users of one class -------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_on_one_stream_a_key_may_be_granted_in_the_next_step(depth: int) -> None:
    assert pool_leases(compile_plan(decode_step(depth)), "blocks") == OWN


def test_across_streams_it_takes_the_longest_of_the_shortest_paths() -> None:
    graph = StepGraph.build(
        [
            device("write", op(), op("done@-3", "kv"), stream="one"),
            device("read", op(), op("kv", "done"), stream="two"),
        ],
        [value("done", "device", 8)],
        [keyed("kv")],
        order="keep",
    )
    plan = compile_plan(graph)  # the state itself orders read(i) before write(i + 1)
    assert pool_leases(plan, "keys") == OWN


def test_offsets_count() -> None:
    graph = StepGraph.build(
        [host("a", op("s", "s")), host("b", op("s"), offset=2)], [], [keyed("s")], order="keep"
    )
    # b of step i runs in iteration i + 2, so a of step i + 3 is the first after it
    assert pool_leases(compile_plan(graph), "keys") == {("owner", "owner"): 3}


def test_two_states_of_one_pool_have_the_longer_lease() -> None:
    graph = StepGraph.build(
        [host("a", op("s", "s t")), host("b", op("s"), offset=2)],
        [],
        [keyed("s"), keyed("t")],
        order="keep",
    )
    assert pool_leases(compile_plan(graph), "keys") == {("owner", "owner"): 3}


def test_keys_of_a_state_that_nobody_writes_can_never_be_granted_anew() -> None:
    graph = StepGraph.build(
        [device("a", op(), op("s"), stream="one"), device("b", op(), op("s"), stream="two")],
        [],
        [keyed("s")],
        order="keep",
    )
    with pytest.raises(GraphError, match="never be granted") as caught:
        pool_leases(compile_plan(graph), "keys")
    assert caught.value.code == "SW-UNORDERED"


def test_leases_of_one_class_are_no_part_of_the_digest() -> None:
    plan = compile_plan(decode_step(2))
    assert plan.leases
    assert "leases" not in plan.to_json()
    assert replace(plan, leases=()).digest == plan.digest
    assert leases_in_words(plan) == []


# --- users of several classes -------------------------------------------------------------------


def test_different_keys_are_not_ordered_and_a_wait_comes_only_where_nothing_hands_keys_on() -> None:
    plan = compile_plan(two_streams())
    verify(plan)
    # the launches alone let the copy run ahead, so both directions need a wait
    found = [wait for wait in plan.waits if wait.protects[0].hazard == "LEASE"]
    assert {(wait.source, wait.target) for wait in found} == {
        ("copy.device", "work.device"),
        ("work.device", "copy.device"),
    }
    assert plan.period_us == 100
    assert compile_plan(without_classes(plan.graph)).period_us == 140
    assert plan.to_json()["leases"] == [
        {"state": "s", "source": lease.source, "target": lease.target, "steps": lease.steps}
        for lease in plan.leases
    ]


def test_what_only_reads_hands_keys_on_to_what_only_reads_without_a_lease() -> None:
    plan = compile_plan(two_streams())
    assert ("owner", "owner") not in steps(plan)
    assert steps(plan).keys() == {("copy", "copy"), ("copy", "owner"), ("owner", "copy")}


def test_a_wait_for_keys_is_as_near_as_the_period_permits() -> None:
    short, long = (compile_plan(two_streams(cost=cost)) for cost in (0.0, 100.0))
    assert short.period_us == long.period_us == 100
    assert steps(short)["copy", "owner"] + steps(short)["owner", "copy"] == 1
    assert steps(long)["copy", "owner"] + steps(long)["owner", "copy"] == 2


def test_a_pinned_lease_is_kept_and_may_cost_time() -> None:
    plan = compile_plan(two_streams(("copy", "owner", 0), ("owner", "copy", 1)))
    verify(plan)
    assert steps(plan)["copy", "owner"] == 0
    assert steps(plan)["owner", "copy"] == 1
    assert plan.period_us == 140


def test_the_order_of_the_host_threads_is_searched_for_the_leases_that_are_pinned() -> None:
    """The order without a pin has the copy's launch behind that of the work, one step late."""
    found = []
    for pins in ((), (("copy", "owner", 0),)):
        plan = compile_plan(searched(*pins))
        verify(plan)
        found.append((steps(plan)["copy", "owner"], plan.period_us))
    assert found == [(1, 1000), (0, 1000)]


def test_a_lease_that_the_serial_program_does_not_keep_is_refused() -> None:
    with pytest.raises(GraphError, match="Pin 1 or more") as caught:
        compile_plan(two_streams(("owner", "copy", 0)))
    assert caught.value.code == "SW-LEASE"


@pytest.mark.parametrize(
    ("classes", "leases", "said"),
    [
        ((("t", "copy"),), (), "no state that it accesses"),
        ((("s", "copy"),), (("copi", "owner", 1),), "did you mean 'copy'"),
    ],
)
def test_wrong_classes_are_refused(
    classes: tuple[tuple[str, str], ...], leases: tuple[tuple[str, str, int], ...], said: str
) -> None:
    with pytest.raises(GraphError, match=said) as caught:
        StepGraph.build(
            [host("a", replace(op("s", "s"), classes=classes))], [], [keyed("s", *leases)]
        )
    assert caught.value.code == "SW-CLASS"


def test_a_class_of_a_state_without_keys_is_refused() -> None:
    with pytest.raises(GraphError, match="has no keys") as caught:
        StepGraph.build([host("a", of("copy", op("s", "s")))], [], ["s"])
    assert caught.value.code == "SW-CLASS"


# --- the verifier -------------------------------------------------------------------------------


def test_a_lease_that_is_too_short_or_missing_is_reported_with_both_accesses() -> None:
    plan = compile_plan(two_streams())
    for lease in plan.leases:
        others = tuple(each for each in plan.leases if each is not lease)
        [missing] = violations(replace(plan, leases=others))
        assert missing.code == "SW-LEASE"
        assert f"{lease.source!r} to {lease.target!r}" in missing.message
        shorter = Lease("s", lease.source, lease.target, lease.steps - 1)
        [short] = violations(replace(plan, leases=(*others, shorter)))
        assert short.code == "SW-LEASE"
        assert "too early" in short.message
        assert short.before is not None
        assert short.before.step == 0


# --- the shipped graphs ---------------------------------------------------------------------------

SHIPPED = {"kv_swap": 1800, "offload_prefetch": 1750, "two_batches": 2000, "adapters": 1700}


@pytest.mark.parametrize(("name", "serialized"), SHIPPED.items())
def test_shipped_graphs_run_side_by_side_what_one_class_of_users_would_serialize(
    name: str, serialized: float
) -> None:
    plan = shipped_plan(name)
    assert plan.period_us == 1000
    assert compile_plan(without_classes(plan.graph)).period_us == serialized
    assert len(leases_in_words(plan)) == len(plan.leases)


# --- in words -------------------------------------------------------------------------------------


def test_a_lease_is_explained_by_the_two_accesses_that_take_longest() -> None:
    plan = compile_plan(two_streams(("copy", "owner", 0), ("owner", "copy", 1)))
    why = explain_lease(plan, "s", "owner", "copy")
    assert why.lines() == [
        "A key of keys that 'owner' had in step i at last may be had by 'copy' from step i+1 on, "
        "in s.",
        "work.device of step i touches it last, copy.device of step i+1 first. They are ordered by "
        "work.device(i) → copy.device(i+1) [wait].",
        "One step sooner, copy.device of step i could touch it while work.device of step i still "
        "does.",
    ]
    assert json.loads(json.dumps(why.to_json()))["steps"] == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("t", "owner", "copy"), "no keyed state 't'"),
        (("s", "copi", "owner"), "did you mean 'copy'"),
        (("s", "owner", "owner"), "both only read"),
    ],
)
def test_a_lease_that_is_not_there_is_refused_in_words(
    asked: tuple[str, str, str], said: str
) -> None:
    with pytest.raises(GraphError, match=said):
        explain_lease(compile_plan(two_streams()), *asked)


def test_a_lease_that_is_pinned_twice_is_refused() -> None:
    with pytest.raises(GraphError, match="the lease of 'owner' to 'copy' is there twice") as caught:
        two_streams(("owner", "copy", 3), ("owner", "copy", 1))
    assert caught.value.code == "SW-DUPLICATE"
