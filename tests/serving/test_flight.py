"""The flight recorder: the last steps of a service that goes on serving."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stepweave import LLM, AsyncLLM, SamplingParams, compile_plan, node, read, run, step_graph
from stepweave.graph.plan import Plan
from stepweave.requests.request import FinishReason
from stepweave.requests.step_counts import StepCount
from stepweave.serving.flight import FlightRecorder
from stepweave.timelines.analysis import analyse
from stepweave.timelines.measured import measured

STORY = "Write a short story about a fox."
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@node(writes="batch", cost_us=300)
def schedule(ctx):  # type: ignore[no-untyped-def]
    return ctx.step


@node(stream="compute", writes="token", cost_us=1000)
def forward(batch, last=read("token", 1)):  # type: ignore[no-untyped-def]  # noqa: B008
    return (last or 0) + batch


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(step_graph(schedule, forward))


def recorded(plan: Plan, steps: int, idle: set[int], empty: set[int], kept: int) -> FlightRecorder:
    """A run of which some steps waited for requests, and some had no row."""
    flight = FlightRecorder(kept)
    run(plan, executor="threads", steps=steps, trace=flight.ops)
    for step in range(steps):
        rows = 0 if step in empty else 2
        waited = 0.5 if step in idle else 0.0
        flight.counts.scheduled(StepCount(step, rows, 0, 1, 8, idle_s=waited))
    return flight


def test_a_stretch_is_the_latest_steps_in_which_nobody_waited(plan: Plan) -> None:
    flight = recorded(plan, 60, idle={20}, empty={18, 19, 58, 59}, kept=128)
    found = flight.stretch({"usual": plan})
    assert found is not None
    assert (found.first, found.report.steps) == (21, 37)
    assert [count.step for count in found.counts] == [*range(37)]
    assert {event.step for event in found.report.events} == {*range(37)}
    assert min(event.start_s for event in found.report.events) == 0.0
    assert max(event.end_s for event in found.report.events) == found.report.seconds
    assert analyse(measured(plan, found.report)).mean_us > 0


def test_a_stretch_can_be_cut_to_its_latest_steps(plan: Plan) -> None:
    found = recorded(plan, 40, idle=set(), empty={39}, kept=128).stretch({"usual": plan}, 5)
    assert found is not None
    assert (found.first, found.report.steps, len(found.counts)) == (34, 5, 5)


def test_where_the_latest_are_few_an_earlier_longer_stretch_counts(plan: Plan) -> None:
    found = recorded(plan, 40, idle={34}, empty=set(), kept=128).stretch({"usual": plan})
    assert found is not None
    assert (found.first, found.report.steps) == (0, 34)


def test_of_several_that_are_few_and_equally_long_the_latest_counts(plan: Plan) -> None:
    found = recorded(plan, 21, idle={4, 10, 16}, empty=set(), kept=128).stretch({"usual": plan})
    assert found is not None
    assert (found.first, found.report.steps) == (11, 5)


def test_before_a_step_is_complete_there_is_no_stretch(plan: Plan) -> None:
    assert FlightRecorder().stretch({"usual": plan}) is None
    assert recorded(plan, 3, idle=set(), empty={0, 1, 2}, kept=8).stretch({"usual": plan}) is None


def test_what_is_remembered_is_bounded(plan: Plan) -> None:
    flight = recorded(plan, 500, idle=set(), empty=set(), kept=32)
    assert len(flight.counts.all()) == 32
    assert len(flight.ops.latest.events()) == 32 * len(plan.graph.vertices)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(pipeline="async_grammar") as made:
        yield made


def test_a_service_that_records_gives_the_same_tokens_and_its_steps(llm: LLM) -> None:
    [plain] = llm.generate(STORY, LONG)
    flight = FlightRecorder()
    llm.service.record(flight)
    try:
        [noted] = llm.generate(STORY, LONG)
        found = flight.stretch(llm.plans)
    finally:
        llm.service.record(None)
    assert noted.token_ids == plain.token_ids
    assert found is not None
    assert found.report.steps >= 30
    assert sum(count.tokens for count in found.counts) > 20
    assert {count.rows for count in found.counts} == {1}
    [after] = llm.generate(STORY, LONG)
    assert after.token_ids == plain.token_ids
    assert flight.stretch(llm.plans) == found  # nothing was added


def test_recording_can_begin_in_the_middle_of_a_request(llm: LLM) -> None:
    [plain] = llm.generate(STORY, LONG)
    flight = FlightRecorder()
    pieces = llm.stream(STORY, LONG)
    try:
        first = next(pieces)
        llm.service.record(flight)
        rest = [*pieces]
    finally:
        llm.service.record(None)
    assert first.text + "".join(piece.text for piece in rest) == plain.text
    output = rest[-1].output
    assert output is not None
    assert output.token_ids == plain.token_ids
    assert flight.counts.all()


def test_a_traced_call_has_its_own_steps_and_the_recorder_goes_on_afterwards(llm: LLM) -> None:
    flight = FlightRecorder()
    llm.service.record(flight)
    try:
        traced = llm.traced(STORY, LONG)
        assert {event.step for event in traced.report.events} >= {*range(30)}
        assert not flight.counts.all()
        llm.generate(STORY, LONG)
        assert flight.counts.all()
    finally:
        llm.service.record(None)


def test_ends_are_counted_by_how_whether_a_request_had_begun_or_not() -> None:
    async def ends() -> dict[FinishReason, int]:
        # No process of each library that tries the grammar: those take seconds to start.
        here = {"nodes.bitmask.compile_limit_s": "null"}
        async with AsyncLLM(pipeline="async_grammar", overrides=here) as llm:
            stream = await llm.submit(STORY, {"max_tokens": 4, "n": 2})
            async for _ in stream:
                pass
            endless = await llm.submit(STORY, {"max_tokens": 400, "ignore_eos": True})
            await anext(endless)
            endless.cancel()
            async for _ in endless:
                pass
            wrong = {"max_tokens": 4, "structured_outputs": {"regex": "(?<=a)b"}}
            refused = await llm.submit(STORY, wrong)
            async for _ in refused:
                pass
            return {**llm.service.ended}

    assert asyncio.run(ends()) == {"length": 2, "cancelled": 1, "error": 1}
