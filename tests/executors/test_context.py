"""What an op can reach, where versions live, and when they go."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from stepweave.executors import NodeFailure, UndeclaredAccess, run
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Storage, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from tests.memory import settle

EXECUTORS = pytest.mark.parametrize("executor", ["serial", "threads"])


def host(name: str, run: Run | None = None, *, actor: str = "driver", **op: Any) -> Node:
    return Node(name, (Op(run=run, **op),), actor=actor)


def plan_of(nodes: list[Node], values: list[Value], states: tuple[str, ...] = ()) -> Plan:
    return compile_plan(StepGraph.build(nodes, values, states, order="keep"))


# --- only what was declared ---


def access(kind: str, name: str) -> Run:
    def work(ctx: OpContext) -> None:
        if kind == "write":
            ctx.write(name, 1)
        else:
            getattr(ctx, kind)(name)

    return work


@EXECUTORS
@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("read", "batc", "reads 'batc', which it does not declare (did you mean 'batch'?)"),
        ("read", "tokens", "reads 'tokens', which it does not declare"),
        ("write", "batch", "writes 'batch', which it does not declare"),
        ("write", "token", "writes 'token', which it does not declare (did you mean 'tokens'?)"),
        ("buffer", "batch", "asks for the buffer of 'batch', which it does not declare"),
        ("state", "kvs", "asks for state 'kvs', which it does not declare (did you mean 'kv'?)"),
        ("state", "table", "asks for state 'table', which it does not declare"),
    ],
)
def test_an_undeclared_access_names_node_op_and_nearest_name(
    executor: str, kind: str, name: str, message: str
) -> None:
    plan = plan_of(
        [
            host("schedule", writes=("batch", "table")),
            host(
                "sample", access(kind, name), reads=(Read("batch"), Read("kv")), writes=("tokens",)
            ),
        ],
        [Value("batch"), Value("tokens")],
        ("kv", "table"),
    )
    with pytest.raises(NodeFailure) as caught:
        run(plan, executor=executor, steps=2, states={"kv": object(), "table": object()})
    assert isinstance(caught.value.__cause__, UndeclaredAccess)
    assert f"node 'sample': op 'sample.host' {message}" in str(caught.value)


def test_a_declared_state_without_an_object_says_what_to_pass() -> None:
    plan = plan_of([host("forward", access("state", "kv"), reads=(Read("kv"),))], [], ("kv",))
    with pytest.raises(NodeFailure, match="no object for it: pass it in `states`"):
        run(plan, steps=1)
    run(plan, steps=1, states={"kv": None})  # None is an object like any other


def test_a_device_op_does_not_get_what_its_launch_declared() -> None:
    node = Node(
        "prepare",
        (Op(writes=("staging",)),),
        (Op(run=access("read", "staging")),),
        stream="compute",
    )
    with pytest.raises(NodeFailure, match=r"op 'prepare.device' reads 'staging'"):
        run(plan_of([node], [Value("staging", "pinned")]), executor="threads", steps=1)


def test_several_carries_of_one_value_are_told_apart() -> None:
    seen: list[tuple[object, ...]] = []

    def look(ctx: OpContext) -> None:
        seen.append((ctx.read("x"), ctx.read("x@-1"), ctx.read("x@-2")))

    nodes = [
        host("make", lambda ctx: ctx.write("x", ctx.step), writes=("x",)),
        host("look", look, reads=(Read("x", 2), Read("x"), Read("x", 1))),
    ]
    run(plan_of(nodes, [Value("x", initial="-")]), steps=3)
    assert seen == [(0, "-", "-"), (1, 0, "-"), (2, 1, 0)]


# --- slots ---


@EXECUTORS
def test_slots_keep_their_buffers_through_steps_of_none(executor: str) -> None:
    """An op that writes nothing publishes None, and finds its buffer again K steps later."""
    buffers: list[object] = []
    seen: list[object] = []

    def fill(ctx: OpContext) -> None:
        buffer = ctx.buffer("x")
        buffers.append(buffer)
        if ctx.step % 3 != 1:
            buffer[0] = ctx.step
            ctx.write("x", buffer)

    def look(ctx: OpContext) -> None:
        found = ctx.read("x")
        seen.append(None if found is None else found[0])

    plan = plan_of(
        [host("fill", fill, writes=("x",)), host("look", look, reads=(Read("x"),))],
        [Value("x", storage="slots", slots=2, allocate=lambda: [-1])],
    )
    report = run(plan, executor=executor, steps=6, keep=["x"])
    assert seen == [0, None, 2, 3, None, 5]
    assert all(buffers[step] is buffers[step % 2] for step in range(6))
    assert buffers[0] is not buffers[1]
    assert report.kept["x"] == [[0], None, [2], [3], None, [5]]  # copies: the buffers changed


@EXECUTORS
@pytest.mark.parametrize("storage", ["fresh", "slots"])
def test_a_value_without_an_allocator_has_no_buffers(executor: str, storage: Storage) -> None:
    plan = plan_of(
        [host("fill", access("buffer", "x"), writes=("x",))], [Value("x", storage=storage)]
    )
    with pytest.raises(NodeFailure) as caught:
        run(plan, executor=executor, steps=2)
    assert isinstance(caught.value.__cause__, UndeclaredAccess)
    assert "asks for the buffer of 'x', which has none" in str(caught.value)
    assert "declare the value with `allocate`" in str(caught.value)


@EXECUTORS
def test_a_fresh_buffer_is_allocated_for_each_step(executor: str) -> None:
    found: list[object] = []
    plan = plan_of(
        [host("fill", lambda ctx: found.append(ctx.buffer("x")), writes=("x",))],
        [Value("x", allocate=lambda: [])],
    )
    run(plan, executor=executor, steps=2)
    assert found == [[], []]
    assert found[0] is not found[1]


@EXECUTORS
def test_a_fresh_value_that_was_not_written_is_none(executor: str) -> None:
    seen: list[object] = []

    def make(ctx: OpContext) -> None:
        if ctx.step % 2 == 0:
            ctx.write("x", ctx.step)

    plan = plan_of(
        [
            host("make", make, writes=("x",)),
            host("look", lambda ctx: seen.append(ctx.read("x")), reads=(Read("x", 1),)),
        ],
        [Value("x", initial="first")],
    )
    report = run(plan, executor=executor, steps=200, keep=["x"])  # the cells come round
    expected = [step if step % 2 == 0 else None for step in range(200)]
    assert seen == ["first", *expected[:-1]]
    assert report.kept["x"] == expected


@EXECUTORS
def test_an_external_value_is_initial_in_every_step(executor: str) -> None:
    seen: list[object] = []
    plan = plan_of(
        [host("look", lambda ctx: seen.append(ctx.read("x")), reads=(Read("x", 1),))],
        [Value("x", external=True, initial="given")],
    )
    report = run(plan, executor=executor, steps=3, keep=["x"])
    assert seen == ["given"] * 3
    assert report.kept["x"] == ["given"] * 3


# --- when fresh versions go ---


class Datum:
    """Something a weak reference can watch."""


@EXECUTORS
@pytest.mark.parametrize("readers", [0, 1, 2, 3])
def test_a_fresh_version_lives_until_its_last_reader_and_no_longer(
    executor: str, readers: int
) -> None:
    """Readers on actors of their own, at carries 0, 1, 2; `probe` comes after them all."""
    versions: list[weakref.ref[Datum]] = []
    alive: list[int] = []
    missing: list[int] = []

    def make(ctx: OpContext) -> None:
        datum = Datum()
        versions.append(weakref.ref(datum))
        ctx.write("x", datum)

    def look(ctx: OpContext) -> None:
        if ctx.step >= 2 and ctx.read("x") is None:
            missing.append(ctx.step)
        ctx.write(f"seen{ctx.vertex.actor}", True)  # type: ignore[attr-defined]

    def probe(ctx: OpContext) -> None:
        gc.collect(0)
        alive.append(sum(ref() is not None for ref in versions[: ctx.step + 1]))

    nodes = [
        host("make", make, writes=("x",)),
        *(
            host(f"look{n}", look, actor=f"{n}", reads=(Read("x", n),), writes=(f"seen{n}",))
            for n in range(readers)
        ),
        host("probe", probe, reads=tuple(Read(f"seen{n}") for n in range(readers))),
    ]
    values = [Value("x"), *(Value(f"seen{n}") for n in range(readers))]
    run(plan_of(nodes, values), executor=executor, steps=9)
    assert not missing
    held = max(0, readers - 1)  # versions that a later step still reads
    expected = [min(step + 1, held) for step in range(9)]
    if executor == "serial":
        assert alive == expected
    assert all(map(int.__le__, alive, expected))  # readers on threads may be ahead of the probe


@pytest.mark.sampled(2)
@EXECUTORS
@pytest.mark.parametrize("storage", ["fresh", "slots"])
def test_nothing_is_held_after_a_run(executor: str, storage: Storage) -> None:
    """Not even until the garbage collector comes by: these may be gigabytes."""
    made: list[weakref.ref[Datum]] = []

    def make(ctx: OpContext) -> None:
        datum = Datum()
        made.append(weakref.ref(datum))
        ctx.write("x", datum)

    plan = plan_of(
        [host("make", make, writes=("x",)), host("look", reads=(Read("x", 5),))],
        [Value("x", storage=storage, slots=7 if storage == "slots" else None)],
    )
    settle()
    gc.disable()
    try:
        run(plan, executor=executor, steps=3)
        assert [ref() for ref in made] == [None] * 3
    finally:
        gc.enable()


# --- the entry point ---


def test_names_that_do_not_exist_are_refused_with_the_nearest() -> None:
    plan = plan_of([host("a", writes=("x",))], [Value("x")], ())
    with pytest.raises(StepweaveError, match=r"no executor 'thread' .did you mean 'threads'"):
        run(plan, executor="thread", steps=1)
    with pytest.raises(StepweaveError, match="no value 'y'"):
        run(plan, steps=1, keep=["y"])
    with pytest.raises(StepweaveError, match="no state 'kv'"):
        run(plan, steps=1, states={"kv": 1})
    with pytest.raises(StepweaveError, match="steps must be a whole number from 0"):
        run(plan, steps=-1)
