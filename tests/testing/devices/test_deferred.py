"""The executor for GPUs on streams of a virtual clock: work is done late, in any order allowed."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace

import pytest

from stepweave import LLM, SamplingParams
from stepweave.executors import NodeFailure, run
from stepweave.executors.errors import DeviceFailure
from stepweave.executors.hold import release_points
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import BOUND, is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.devices.recorded_calls import RecordedCalls, RecordedEvent
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording
from stepweave.testing.unverified import run_unverified
from tests.memory import settle


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(3))
def test_deferred_streams_compute_what_the_serial_program_computes(part: int) -> None:
    compared = 0
    for seed in range(60 * part, 60 * part + 60):
        try:
            graph = recording(random_step_graph(seed))
            plan = compile_plan(graph)
            keep = list(graph.values)
            expected = run(plan, steps=7, states=recorded_states(graph), keep=keep)
        except StepweaveError:
            continue
        for chance in range(3):
            found = run(
                plan,
                executor=Deferred(chance),
                steps=7,
                states=recorded_states(graph),
                keep=keep,
                watchdog_s=10,
            )
            assert found.kept == expected.kept, f"graph {seed}, chance {chance}"
        compared += 1
    assert compared >= 20


def guarded(slots: int | None = 1) -> Plan:
    """A host writes one pinned slot, a stream copies it: the next write has to wait."""
    seen: list[object] = []  # of the run that is under way

    def stage(ctx: OpContext) -> None:
        ctx.write("staging", ctx.step)

    def copy(ctx: OpContext) -> None:
        if ctx.step == 0:
            seen.clear()
        seen.append((ctx.step, ctx.read("staging")))
        ctx.write("copied", list(seen))

    node = Node(
        "copy",
        (Op(writes=("staging",), run=stage),),
        (Op((Read("staging"),), ("copied",), run=copy),),
        stream="compute",
    )
    values = [Value("staging", "pinned", "slots", slots=slots), Value("copied", "device")]
    return compile_plan(StepGraph.build([node], values))


def test_without_its_guard_the_copy_really_reads_what_comes_after() -> None:
    plan = guarded()
    right = [(step, step) for step in range(8)]
    assert all(
        run(plan, executor=Deferred(seed), steps=8, keep=["copied"]).kept["copied"][-1] == right
        for seed in range(20)
    )
    loose = replace(plan, waits=())
    assert any(
        run_unverified(loose, Deferred(seed), RunArguments(8, keep=["copied"])).kept["copied"][-1]
        != right
        for seed in range(20)
    )


def test_a_seed_repeats_and_seeds_differ() -> None:
    order: list[str] = []

    def note(name: str) -> Op:
        return Op(run=lambda ctx: order.append(f"{name}{ctx.step}"))

    nodes = [Node(name, (Op(),), (note(name),), stream=name) for name in "abc"]
    plan = compile_plan(StepGraph.build(nodes, []))
    seen = []
    for seed in (1, 1, 2, 3):
        order.clear()
        run(plan, executor=Deferred(seed), steps=6)
        assert len(order) == 18
        seen.append(tuple(order))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


# --- what must be kept, and for how long ---


class Datum:
    """Something whose end can be seen."""


def chain(waits: bool = True) -> tuple[Plan, dict[int, weakref.ref[Datum]], list[tuple[int, ...]]]:
    """make (stream a) → use (stream b) → done (host, one step later). Who is alive when?"""
    made: dict[int, weakref.ref[Datum]] = {}
    alive: list[tuple[int, ...]] = []

    def make(ctx: OpContext) -> None:
        datum = Datum()
        made[ctx.step] = weakref.ref(datum)
        ctx.write("x", datum)

    def finish(ctx: OpContext) -> None:
        alive.append(tuple(step for step, datum in made.items() if datum() is not None))

    use = Op((Read("x"),), ("y",), run=lambda ctx: ctx.write("y", ctx.step))
    nodes = [
        Node("make", (Op(),), (Op(writes=("x",), run=make),), stream="a"),
        Node("use", (Op(),), (use,), stream="b"),
        Node("done", (Op((Read("y"),) if waits else (), run=finish),), offset=1),
    ]
    graph = StepGraph.build(
        nodes, [Value("x", "device"), Value("y", "pinned")], order="keep", name="chain"
    )
    return compile_plan(graph), made, alive


def test_what_a_stream_may_still_read_is_kept_until_a_host_op_knows_better() -> None:
    plan, _, alive = chain()
    assert release_points(plan) == {"make.device": ("done.host", 0), "use.device": ("done.host", 0)}
    run(plan, executor=RecordedCalls(), steps=6)
    # When `done` of step i is through, i + 1 has been launched and i is known to be over.
    assert alive == [(1,), (2,), (3,), (4,), (5,), ()]


def test_where_only_a_bound_follows_it_lets_data_go() -> None:
    settle()
    plan, made, alive = chain(waits=False)
    assert [str(wait.target) for wait in plan.waits if is_bound(wait)] == ["make.host"]
    host, distance = release_points(plan)["use.device"] or ("", 0)
    assert (host, distance) == ("done.host", BOUND - 1)  # which acts on the step before
    device = RecordedCalls()
    run(plan, executor=device, steps=3 * BOUND)
    assert len(made) == 3 * BOUND
    assert BOUND - 2 <= max(map(len, alive)) <= BOUND + 2, "bounded, and far behind"
    gc.collect()  # the run's own parts refer to each other
    assert not any(datum() for datum in made.values())


def test_an_error_of_the_device_names_the_work_it_came_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(event: RecordedEvent) -> None:
        if event.work == "use/3":
            raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(RecordedEvent, "synchronize", fail)
    plan, _, _ = chain()
    with pytest.raises(NodeFailure) as caught:
        run(plan, executor=RecordedCalls(), steps=6)
    assert (caught.value.op, caught.value.step) == ("done.host", 3)
    cause = caught.value.__cause__
    assert isinstance(cause, DeviceFailure)
    assert (cause.op, cause.step) == ("use.device", 3)
    assert "'use.device' of step 3" in str(cause)
    assert "illegal memory access" in str(cause.__cause__)


# --- the real thing ---


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["async_eagle3_grammar", "quickstart", "drafter_stream"])
def test_a_real_pipeline_on_deferred_streams_gives_the_serial_tokens(name: str) -> None:
    prompts = ["Write a short story about a fox named Ida.", "Ada is 41 and lives in Oslo."]
    params = SamplingParams(max_tokens=20)
    plain = LLM(pipeline=name, overrides={"executor": "serial", "depth": "1"})
    expected = [output.token_ids for output in plain.generate(prompts, params)]
    llm = LLM(pipeline=name)
    for seed in range(2):
        llm.engine.executor = Deferred(seed)
        found = [output.token_ids for output in llm.generate(prompts, params)]
        assert found == expected, f"seed {seed}"


def test_a_traced_host_op_ends_when_it_has_launched_its_own() -> None:
    """On streams that work at once the launch is where the bodies are called."""

    def slow(ctx: OpContext) -> None:
        time.sleep(0.02)
        ctx.write("x", ctx.step)

    nodes = [
        Node("make", (Op(),), (Op(writes=("x",), run=slow),), stream="compute"),
        Node("use", (Op((Read("x"),)),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", "pinned")], order="keep"))
    events = run(plan, executor=RecordedCalls(), steps=3, trace=True).events
    spans = {(event.op, event.step): (event.start_s, event.end_s) for event in events}
    for step in range(3):
        start, end = spans["make.host", step]
        assert end - start >= 0.02
        assert start <= spans["make.device", step][0] <= spans["make.device", step][1] <= end
