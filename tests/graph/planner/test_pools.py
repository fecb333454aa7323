"""When a key of a pool may be granted anew."""

from __future__ import annotations

import pytest

from stepweave.graph.errors import GraphError
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.pools import reuse_distance
from stepweave.graph.step_graph import StepGraph
from stepweave.testing import decode_step
from tests.graph.build import device, host, op, value


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_on_one_stream_a_key_may_be_granted_in_the_next_step(depth: int) -> None:
    plan = compile_plan(decode_step(depth))
    assert reuse_distance(plan, "kv") == 1
    assert reuse_distance(plan, "draft_kv") == 1


def test_across_streams_it_takes_the_longest_of_the_shortest_paths() -> None:
    graph = StepGraph.build(
        [
            device("write", op(), op("done@-3", "kv"), stream="one"),
            device("read", op(), op("kv", "done"), stream="two"),
        ],
        [value("done", "device", 8)],
        ["kv"],
        order="keep",
    )
    plan = compile_plan(graph)  # the state itself orders read(i) before write(i + 1)
    assert reuse_distance(plan, "kv") == 1


def test_offsets_count() -> None:
    graph = StepGraph.build(
        [host("a", op("s", "s")), host("b", op("s"), offset=2)], [], ["s"], order="keep"
    )
    # b of step i runs in iteration i + 2, so a of step i + 3 is the first after it
    assert reuse_distance(compile_plan(graph), "s") == 3


def test_readers_that_nothing_orders_never_free_a_key() -> None:
    graph = StepGraph.build(
        [device("a", op(), op("s"), stream="one"), device("b", op(), op("s"), stream="two")],
        [],
        ["s"],
        order="keep",
    )
    with pytest.raises(GraphError, match="never be granted") as caught:
        reuse_distance(compile_plan(graph), "s")
    assert caught.value.code == "SW-UNORDERED"


def test_an_unknown_state_is_refused_with_the_nearest() -> None:
    with pytest.raises(GraphError, match="did you mean 'kv'"):
        reuse_distance(compile_plan(decode_step(2)), "kvs")
