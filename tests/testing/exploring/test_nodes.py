"""Real ops interleaved: serial values, many orders of ops, each again from its seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave.executors import NodeFailure, RunReport, StuckWait, run
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.exploring.nodes import Interleaved
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording
from stepweave.testing.unverified import run_unverified


def go(plan: Plan, executor: Interleaved | str, steps: int | None = 7) -> RunReport:
    return run(
        plan,
        executor=executor,
        steps=steps,
        states=recorded_states(plan.graph),
        keep=list(plan.graph.values),
    )


def test_every_seed_computes_what_the_serial_program_computes() -> None:
    compared = 0
    for seed in range(60):
        try:
            graph = recording(random_step_graph(seed))
            plan = compile_plan(graph)
            expected = go(plan, "serial")
        except StepweaveError:
            continue  # no plan, or no serial program
        for each in range(3):
            assert go(plan, Interleaved(each)).kept == expected.kept, f"graph {seed}, seed {each}"
        compared += 1
    assert compared >= 25


def pipeline(log: list[tuple[str, int]], last: int | None = None, *, host_carry: int = 2) -> Plan:
    """A host op that launches device work and reads what came of it `host_carry` steps ago."""

    def note(name: str) -> object:
        def work(ctx: OpContext) -> None:
            log.append((name, ctx.step))
            if name == "make" and ctx.step == last:
                ctx.stop()

        return work

    def op(name: str, reads: tuple[Read, ...], writes: tuple[str, ...]) -> Op:
        return Op(reads, writes, run=note(name))  # type: ignore[arg-type]

    graph = StepGraph.build(
        [
            Node("make", (op("make", (Read("out", host_carry),), ("in",)),)),
            Node(
                "compute",
                (op("launch", (Read("in"),), ("staged",)),),
                (op("compute", (Read("staged"),), ("mid",)),),
                stream="compute",
            ),
            Node("copy", (Op(),), (op("copy", (Read("mid"),), ("out",)),), stream="copy"),
        ],
        [
            Value("in"),
            Value("staged", "pinned", "slots"),
            Value("mid", "device", "slots"),
            Value("out", "pinned", "slots"),
        ],
        order="keep",
    )
    return compile_plan(graph)


def test_seeds_bring_many_orders_and_each_its_own_again() -> None:
    orders = set()
    for seed in range(40):
        twice = []
        for _ in range(2):
            log: list[tuple[str, int]] = []
            run(pipeline(log), executor=Interleaved(seed), steps=6)
            assert len(log) == 4 * 6
            twice.append(tuple(log))
        assert twice[0] == twice[1]
        orders.add(twice[0])
    assert len(orders) >= 30
    ahead = {order.index(("make", 1)) > order.index(("copy", 0)) for order in orders}
    assert ahead == {True, False}, "both orders of two ops that nothing orders come out"


@pytest.mark.parametrize("seed", range(12))
def test_what_the_plan_orders_stays_in_order_and_a_stop_ends_all_alike(seed: int) -> None:
    log: list[tuple[str, int]] = []
    report = run(pipeline(log, last=5), executor=Interleaved(seed))
    place = {each: index for index, each in enumerate(log)}
    assert report.steps >= 6
    for step in range(report.steps):
        chain = [place[name, step] for name in ("make", "launch", "compute", "copy")]
        assert chain == sorted(chain)
        if step >= 2:
            assert place["copy", step - 2] < place["make", step]
    assert len(log) == 4 * report.steps, "every step that began was finished"


def test_without_its_wait_a_reader_comes_too_early_under_some_seed() -> None:
    def early(seed: int) -> bool:
        log: list[tuple[str, int]] = []
        plan = pipeline(log)
        kept = tuple(
            w for w in plan.waits if (w.source, w.target) != ("compute.device", "copy.device")
        )
        assert len(kept) < len(plan.waits)
        run_unverified(replace(plan, waits=kept), Interleaved(seed), RunArguments(steps=6))
        return any(log.index(("copy", i)) < log.index(("compute", i)) for i in range(6))

    assert any(early(seed) for seed in range(10))


def test_a_stream_that_two_hosts_feed_outlives_the_first_of_them() -> None:
    """`fill` is ahead of `use`: its last step waits for one that the other host never comes to."""
    nodes = [
        Node("use", (Op(),), (Op((Read("x", 1),)),), stream="copy", offset=2),
        Node("other", (Op(),), (Op(),), actor="helper", stream="copy"),
        Node("fill", (Op(writes=("x",)),), actor="helper", offset=-1),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", "pinned", "slots", 3)], order="keep"))
    assert any(
        (wait.source, wait.target, wait.distance) == ("use.device", "fill.host", 2)
        for wait in plan.waits
    )
    for seed in range(20):
        assert run(plan, executor=Interleaved(seed), steps=4).steps == 4


def test_a_circle_of_waits_is_found_at_once() -> None:
    plan = pipeline([])
    circle = (*plan.waits, Wait("copy.device", "make.host", 0))
    with pytest.raises(StuckWait, match=r"'make\.host' of step 0 waits for 'copy\.device'"):
        run_unverified(replace(plan, waits=circle), Interleaved(0), RunArguments(steps=3))


def test_a_failing_op_is_named_with_its_step() -> None:
    def fail(ctx: OpContext) -> None:
        if ctx.step == 2:
            raise ValueError("no")

    plan = compile_plan(StepGraph.build([Node("a", (Op(writes=("x",), run=fail),))], [Value("x")]))
    with pytest.raises(NodeFailure, match=r"op 'a\.host' failed in step 2: ValueError: no"):
        run(plan, executor=Interleaved(3), steps=5)
