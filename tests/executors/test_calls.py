"""What the executor for GPUs asks of the device, seen without one: goldens, and a race oracle."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from stepweave.cli.planned import planned
from stepweave.configs.load import shipped
from stepweave.executors.run import run
from stepweave.graph.errors import StepweaveError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording, with_graph
from tests.executors.calls import broken
from tests.graph.shipped_plans import GRAPHS, ONCE

GOLDEN = Path(__file__).parent / "golden" / "calls"


def calls(plan: Plan, steps: int = 2) -> str:
    """The calls of each host thread, in its order."""
    graph = recording(plan.graph)
    device = RecordedCalls()
    run(with_graph(plan, graph), executor=device, steps=steps, states=recorded_states(graph))
    hosts = dict.fromkeys(sorted(call.host for call in device.calls))
    urgent = f"urgent: {', '.join(sorted(device.urgent))}\n"
    return urgent + "\n".join(
        "\n".join([host, *(f"  {call}" for call in device.calls if call.host == host), ""])
        for host in hosts
    )


@pytest.mark.parametrize("name", ONCE)
def test_the_exact_stream_and_event_calls_of_every_shipped_pipeline(name: str) -> None:
    """Padding steps included: a skipped step keeps its waits and records. UPDATE_GOLDEN=1."""
    path = GOLDEN / f"{name.replace('/', '_')}.txt"
    text = calls(planned(name))
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.sampled(20)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in shipped() if name not in GRAPHS])
def test_the_calls_of_shipped_pipelines_order_every_pair_of_conflicting_accesses(
    name: str, depth: int
) -> None:
    assert broken(planned(name, {"depth": str(depth)})) == []


@pytest.mark.parametrize("name", ["async_eagle3_grammar", "drafter_stream", "grammar_worker"])
def test_without_any_one_wait_the_oracle_sees_a_race(name: str) -> None:
    plan = planned(name)
    assert plan.waits
    for wait in plan.waits:
        rest = tuple(other for other in plan.waits if other is not wait)
        assert broken(replace(plan, waits=rest)), f"{wait.source} → {wait.target} was for nothing"


def test_the_calls_of_random_graphs_order_every_pair_of_conflicting_accesses() -> None:
    checked = 0
    for seed in range(75):
        try:
            plan = compile_plan(random_step_graph(seed))
        except StepweaveError:
            continue
        assert broken(plan) == [], f"seed {seed}"
        checked += 1
    assert checked >= 30


def test_events_are_recorded_only_where_somebody_waits() -> None:
    for name in ONCE:
        plan = planned(name)
        if name in GRAPHS and "forward" not in {node.name for node in plan.graph.nodes}:
            continue
        graph = recording(plan.graph)
        device = RecordedCalls()
        run(with_graph(plan, graph), executor=device, steps=5, states=recorded_states(graph))
        steps = sum(call.kind == "run" and call.work == "forward/2" for call in device.calls)
        assert steps == 1
        recorded = [call.work for call in device.calls if call.kind == "record"]
        sources = [graph.vertices[op] for op in plan.records]
        nodes = {vertex.node.name for vertex in sources if vertex.side == "device"}
        assert {str(work).partition("/")[0] for work in recorded} == nodes
        waited = {call.work for call in device.calls if call.kind in ("wait", "synchronize")}
        assert set(recorded) >= waited


def test_a_stream_that_a_host_waits_for_is_urgent() -> None:
    graph = planned("quickstart").graph
    device = RecordedCalls()
    plan = with_graph(planned("quickstart"), recording(graph))
    run(plan, executor=device, steps=1, states=recorded_states(graph))
    assert device.urgent == {"copy"}
