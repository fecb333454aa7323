"""Executors order nothing beyond the plan: what a device is asked is its waits, and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from time import sleep

import pytest
import torch

from stepweave import LLM, SamplingParams
from stepweave.cli.planned import planned
from stepweave.executors.run import run
from stepweave.graph.errors import DeadlockError, StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import BOUND, is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.requests.pacer import Pacer
from stepweave.testing.devices.recorded_calls import Call, RecordedCalls
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording, with_graph
from tests.graph.shipped_plans import ONCE

Waited = Counter[tuple[str, str]]  # who waits, and for what, as node/step


def plans() -> Iterator[Plan]:
    """Those of shipped pipelines, and of random graphs with device ops."""
    yield from map(planned, ONCE)
    for seed in range(40):
        try:
            plan = compile_plan(random_step_graph(seed))
        except DeadlockError:
            continue
        if any(vertex.side == "device" for vertex in plan.graph.vertices.values()):
            yield plan


def calls(plan: Plan, steps: int, device: RecordedCalls, keep: Sequence[str] = ()) -> list[Call]:
    graph = recording(plan.graph)
    run(with_graph(plan, graph), executor=device, steps=steps, states=recorded_states(graph),
        keep=keep)  # fmt: skip
    return device.calls


def by_host(made: Sequence[Call]) -> dict[str, list[Call]]:
    return {host: [c for c in made if c.host == host] for host in {c.host for c in made}}


def waited_for(made: Sequence[Call], steps: int) -> Waited:
    """Every wait for work of a step that is one of the run."""
    found = Waited()
    for call in made:
        if call.kind in ("wait", "synchronize") and call.work is not None:
            found[call.stream or call.host, call.work] += 0 <= int(call.work.split("/")[1]) < steps
    return +found


def planned_waits(plan: Plan, steps: int, beyond: bool) -> Waited:
    """The plan's waits for device ops; `beyond`: also those of steps after the last."""
    vertices, found = plan.graph.vertices, Waited()
    for wait in plan.waits:
        source = vertices[wait.source]
        for step in range(steps if source.side == "device" else 0):
            if beyond or 0 <= step + wait.distance < steps:
                found[vertices[wait.target].actor, f"{source.node.name}/{step}"] += 1
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("steps", [1, 6])
def test_a_device_is_asked_for_the_waits_of_the_plan_and_for_nothing_else(steps: int) -> None:
    compared = 0
    for plan in plans():
        found = waited_for(calls(plan, steps, RecordedCalls()), steps)
        assert planned_waits(plan, steps, beyond=False) <= found
        assert found <= planned_waits(plan, steps, beyond=True)
        compared += bool(found)
    assert compared >= 15


def test_a_bound_is_asked_for_like_any_other_wait() -> None:
    nodes = [Node("work", (Op(),), (Op(writes=("x",)),), stream="compute")]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", "device")]))
    assert [is_bound(wait) for wait in plan.waits] == [True]
    found = waited_for(calls(plan, BOUND + 5, RecordedCalls()), BOUND + 5)
    assert found >= Counter({("driver", f"work/{step}"): 1 for step in range(5)})
    assert found == planned_waits(plan, BOUND + 5, beyond=True) & found


def test_holding_data_and_handing_versions_out_make_no_call() -> None:
    for plan in plans():
        plain = RecordedCalls()
        plain.defers = False  # nothing is held for such a device
        expected = by_host(calls(plan, 4, plain))
        assert by_host(calls(plan, 4, RecordedCalls())) == expected
        keep = [name for name, value in plan.graph.values.items() if not value.external]
        assert by_host(calls(plan, 4, RecordedCalls(), keep)) == expected


def filled_on_a_stream(*, looked_at: bool) -> Plan:
    """A stream fills two buffers of the host in turn; a host op may look at each before that."""

    def fill(ctx: OpContext) -> None:
        buffer = ctx.buffer("x")
        buffer.fill_(ctx.step)
        ctx.write("x", buffer)

    read = (Read("x"),) if looked_at else ()
    nodes = [
        Node("fill", (Op(),), (Op(writes=("x",), run=fill),), stream="compute"),
        Node("look", (Op(read),)),
    ]
    value = Value("x", "pinned", "slots", 2, allocate=lambda: torch.zeros(1))
    return compile_plan(StepGraph.build(nodes, [value]))


def test_a_version_that_a_stream_fills_is_copied_by_a_host_op_that_the_plan_has_between() -> None:
    plan = filled_on_a_stream(looked_at=True)
    for seed in range(10):
        kept = run(plan, executor=Deferred(seed), steps=9, keep=["x"]).kept["x"]
        assert [each.tolist() for each in kept] == [[step] for step in range(9)]


def test_where_the_plan_has_none_it_is_refused_and_no_order_is_added() -> None:
    plan = filled_on_a_stream(looked_at=False)
    with pytest.raises(StepweaveError, match=r"keep: 'x' cannot be kept.*Let a host node read"):
        run(plan, executor=Deferred(1), steps=9, keep=["x"])
    assert run(plan, executor="threads", steps=2, keep=["x"]).kept["x"][1].tolist() == [1]


def test_a_delayed_schedule_is_a_longer_op_and_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begins, slept = Pacer.before_schedule, [0]

    def late(self: Pacer, in_flight: int) -> None:
        sleep(0.0005)
        slept[0] += 1
        begins(self, in_flight)

    made, tokens = [], []
    for before in (begins, late):
        monkeypatch.setattr(Pacer, "before_schedule", before)
        with LLM(pipeline="async", overrides={"policies.admission": "just_in_time"}) as llm:
            device = RecordedCalls()
            llm.engine.executor = device
            outputs = llm.generate(["A fox", "Once"], SamplingParams(max_tokens=12))
        tokens.append([output.token_ids for output in outputs])
        made.append(by_host(device.calls))
    assert slept[0] >= 12
    assert tokens[0] == tokens[1]
    assert made[0] == made[1]
