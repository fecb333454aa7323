"""The service below `LLM` and `AsyncLLM`: requests from any thread, on one run of the plan."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from time import sleep
from typing import Any, TypeVar
from weakref import ref

import pytest

from stepweave import LLM, AsyncLLM, SamplingParams
from stepweave.executors.errors import StuckWait
from stepweave.nodes.ops import settling
from stepweave.requests.increment import Increment
from stepweave.requests.request import RequestError, RequestOutput
from stepweave.serving.driver import FUTILE_STEPS
from stepweave.serving.engine import EngineError
from stepweave.serving.service import Service
from stepweave.serving.ticket import Ticket
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarError
from tests.memory import staying_young

STORY = "Write a short story about a fox."
REVIEW = "Is this review positive or negative? What a wonderful lamp!"
SHORT = SamplingParams(max_tokens=6)
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True)
T = TypeVar("T")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(pipeline="async_grammar") as made:
        yield made


@pytest.fixture
def service(llm: LLM) -> Service:
    return llm.service


class Reader:
    """One ticket's increments, as they come."""

    def __init__(self, service: Service, prompt: Any = STORY, **params: Any) -> None:
        self.told: SimpleQueue[Increment] = SimpleQueue()
        self.ticket: Ticket = service.submit(
            prompt, SamplingParams(**params), self.told.put, id="one"
        )

    def next(self) -> Increment:
        return self.told.get(timeout=200)

    def rest(self) -> list[Increment]:
        """To the end of every completion."""
        found: list[Increment] = []
        while sum(each.output is not None for each in found) < self.ticket.n:
            found.append(self.next())
        return found


def test_increments_add_up_to_the_output(llm: LLM) -> None:
    [expected] = llm.generate(STORY, {"max_tokens": 12, "logprobs": 1, "n": 2, "temperature": 0.9})
    reader = Reader(llm.service, max_tokens=12, logprobs=1, n=2, temperature=0.9)
    increments = reader.rest()
    for index, choice in enumerate(expected.choices):
        mine = [each for each in increments if each.index == index]
        assert "".join(each.text for each in mine) == choice.text
        assert sum((each.token_ids for each in mine), ()) == choice.token_ids
        assert sum((each.logprobs or () for each in mine), ()) == choice.logprobs
        assert mine[-1].output is not None
        assert mine[-1].output.token_ids == choice.token_ids
    joined = reader.ticket.output()
    assert [each.token_ids for each in joined.choices] == [
        each.token_ids for each in expected.choices
    ]
    assert len(reader.ticket.prompt_ids) == len(
        llm.service.intake.requests(
            iter(range(2)), "", "", llm.service.intake.prompts.read(STORY, ""), SamplingParams()
        )[0].prompt_ids
    )


def test_a_cancelled_ticket_frees_its_row_and_no_neighbour_notices(
    llm: LLM, service: Service
) -> None:
    [alone] = llm.generate(STORY, {"max_tokens": 40, "ignore_eos": True})
    leaving = Reader(service, max_tokens=400, ignore_eos=True)
    staying = Reader(service, max_tokens=40, ignore_eos=True)
    leaving.next()
    service.cancel(leaving.ticket)
    assert [each.output for each in leaving.rest()][-1] is not None
    assert leaving.ticket.output().finish_reason == "cancelled"
    left = leaving.ticket.output().token_ids
    assert 0 < len(left) < 400
    assert left[:40] == alone.token_ids[: len(left)]
    staying.rest()
    assert staying.ticket.output().token_ids == alone.token_ids
    service.rest()
    assert (service.running, service.queued, service.unended) == (0, 0, 0)
    service.table.check_conservation()


def test_a_ticket_may_be_cancelled_with_an_error(service: Service) -> None:
    reader = Reader(service, max_tokens=400, ignore_eos=True)
    reader.next()
    service.cancel(reader.ticket, "the client reads no more")
    reader.rest()
    output = reader.ticket.output()
    assert (output.finish_reason, output.error) == ("error", "the client reads no more")


def test_a_full_queue_refuses_and_goes_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(
        pipeline="async", overrides={"scheduler.max_rows": "1", "scheduler.max_queue": "2"}
    ) as small:
        first = Reader(small.service, max_tokens=300, ignore_eos=True)
        first.next()  # it has the row
        others = [Reader(small.service, max_tokens=2) for _ in range(2)]
        with pytest.raises(RequestError, match="the queue is full") as caught:
            Reader(small.service, max_tokens=2)
        assert caught.value.code == "SW-QUEUE-FULL"
        assert small.service.queued == 2
        small.service.cancel(first.ticket)
        for each in others:
            each.rest()
            assert each.ticket.output().finish_reason in ("stop", "length")
        Reader(small.service, max_tokens=2).rest()


def test_whoever_stays_keeps_one_run_and_its_thread(service: Service) -> None:
    with service.stay():
        driver = service._driver._thread
        assert driver is not None
        for _ in range(3):
            Reader(service, max_tokens=3).rest()
            assert service._driver._thread is driver
        assert driver.is_alive()
    assert service.wait(200)
    assert not driver.is_alive()


def test_a_late_grammar_begins_when_it_is_there_and_can_be_cancelled_before(
    llm: LLM, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = service.intake.grammar
    late: list[Future[CompiledGrammar]] = []
    real: list[CompiledGrammar] = []

    def grammar(*args: Any) -> Future[CompiledGrammar]:
        real.append(compiled(*args).result())
        late.append(Future())
        return late[-1]

    monkeypatch.setattr(service.intake, "grammar", grammar)
    asked = {"structured_outputs": {"choice": ["positive", "negative"]}}
    served, gone, broken = (Reader(service, REVIEW, **asked) for _ in range(3))
    assert service.queued == 3
    service.cancel(gone.ticket)
    assert gone.rest()[-1].output is not None
    assert gone.ticket.output().finish_reason == "cancelled"
    assert late[1].cancelled(), "nobody else wants it compiled"
    late[0].set_result(real[0])
    late[2].set_exception(GrammarError("over the limit"))
    served.rest()
    broken.rest()
    assert served.ticket.output().text in ("positive", "negative")
    assert broken.ticket.output().error == "over the limit"
    service.rest()
    assert not service.table.inbox.is_open


def test_a_run_that_fails_as_a_whole_ends_its_requests_and_the_next_one_is_served(
    llm: LLM, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = service.engine.run
    stuck = StuckWait(("a.host", 3), ("b.host", 3), 0.1, {})

    def failing(table: Any, **more: Any) -> Any:
        monkeypatch.setattr(service.engine, "run", run)
        raise stuck

    monkeypatch.setattr(service.engine, "run", failing)
    reader = Reader(service, max_tokens=3)
    [last] = reader.rest()
    assert last.output is not None
    assert "the engine's run has ended" in (last.output.error or "")
    assert reader.ticket.failure is stuck
    Reader(service, max_tokens=3).rest()
    assert service.wait(200)  # or the next call would join the run that is still on
    monkeypatch.setattr(service.engine, "run", failing)
    with pytest.raises(StuckWait):
        llm.generate(STORY, SHORT)
    assert llm.generate(STORY, SHORT)[0].error is None


def test_steps_that_fail_now_and_then_are_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without a listener is told of its tokens by its output alone."""
    fails = False
    settle = settling.settle_tokens

    def settled(*given: Any, **named: Any) -> Any:
        nonlocal fails
        _, batch, *_ = given
        if fails and batch.rows:  # the run of before may still have steps, for nobody
            fails = False
            raise RuntimeError("now and then")
        return settle(*given, **named)

    monkeypatch.setattr(settling, "settle_tokens", settled)
    with LLM(pipeline="async") as llm:
        for _ in range(FUTILE_STEPS + 1):
            assert llm.service.wait(200)
            fails = True
            assert llm.generate(STORY, SHORT)[0].finish_reason == "error"
            assert llm.generate(STORY, SHORT)[0].error is None
            assert llm.service.alive


def test_nothing_more_is_served_beside_a_step_that_does_not_end() -> None:
    """It may still write into blocks that would be those of others by then."""
    inside, go_on = threading.Event(), threading.Event()

    def stay(*_: Any) -> None:
        inside.set()
        assert go_on.wait(200)

    with LLM(pipeline="async", overrides={"executor": "threads"}) as llm:
        llm.engine.watchdog_s = 0.2
        hook = llm.engine.model.hf.register_forward_pre_hook(stay)
        try:
            reader = Reader(llm.service, max_tokens=3)
            [last] = reader.rest()
            assert inside.is_set()
            assert last.output is not None
            assert "the engine's run has ended" in (last.output.error or "")
            assert llm.service.wait(200)
            assert not llm.service.alive
            with pytest.raises(EngineError, match="a step did not end, and may still write"):
                Reader(llm.service, max_tokens=3)
        finally:
            go_on.set()
            hook.remove()


def test_an_engine_that_was_closed_before_it_began_begins_nothing() -> None:
    async def work() -> None:
        served = AsyncLLM(pipeline="async_grammar")
        await served.close()
        with pytest.raises(EngineError, match="is closed"):
            await served.submit(STORY)
        assert not served.service.table.inbox.is_open
        assert served.service.wait(0)

    asyncio.run(work())


def test_a_traced_call_and_a_plain_one_get_their_tokens(llm: LLM) -> None:
    """The run begins anew around the trace: the other request is computed again, and equal."""
    wanted = {"max_tokens": 120, "ignore_eos": True}
    [alone] = llm.generate(STORY, wanted)
    other = Reader(llm.service, **wanted)
    other.next()
    traced = llm.traced([REVIEW] * 2, SHORT)
    other.rest()
    assert other.ticket.output().token_ids == alone.token_ids
    assert traced.report.events
    assert [span.id for span in traced.requests] == ["0", "1"]
    assert llm.generate(REVIEW, SHORT)[0].token_ids == traced.outputs[0].token_ids


def test_only_one_trace_is_taken_at_a_time(llm: LLM) -> None:
    def again(name: str, piece: str) -> None:
        with pytest.raises(EngineError, match="being traced already"):
            llm.traced(STORY, SHORT)

    assert llm.traced(STORY, SHORT, on_text=again).outputs[0].error is None


def test_counts_and_spans_are_those_of_the_services_life(llm: LLM, service: Service) -> None:
    before = service.totals.copy()
    readers = [Reader(service, max_tokens=5, ignore_eos=True) for _ in range(3)]
    for each in readers:
        each.rest()
    service.rest()
    assert service.totals.requests - before.requests == 3
    assert service.totals.tokens - before.tokens == 15
    assert service.totals.prompt_tokens - before.prompt_tokens == sum(
        len(each.ticket.prompt_ids) for each in readers
    )
    assert [span.tokens for span in service.recent][-3:] == [5, 5, 5]
    assert all(span.ended_s is not None for span in service.recent)


def test_accepted_drafts_are_counted_by_position() -> None:
    with LLM(pipeline="async_speculation") as drafting:
        drafting.generate([STORY, REVIEW], {"max_tokens": 30})
        totals = drafting.service.totals
    assert sum(totals.accepted_at) == totals.accepted > 0
    assert totals.accepted_at == sorted(totals.accepted_at, reverse=True)
    assert totals.accepted_at[0] <= totals.windows <= totals.drafted


# --- for event loops


def in_a_loop(work: Callable[[AsyncLLM], Awaitable[T]], **more: Any) -> T:
    async def main() -> T:
        async with AsyncLLM(pipeline="async_grammar", **more) as served:
            return await work(served)

    before = threading.active_count()
    found = asyncio.run(main())
    assert threading.active_count() <= before, "a thread is left"
    return found


async def whole(served: AsyncLLM, prompt: Any, **params: Any) -> RequestOutput:
    text, tokens = "", tuple[int, ...]()
    async for increment in served.generate(prompt, params):
        text, tokens = text + increment.text, (*tokens, *increment.token_ids)
    assert increment.output is not None
    assert (text, tokens) == (increment.output.text, increment.output.token_ids)
    return increment.output


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_many_streams_at_once_get_the_tokens_of_generate(llm: LLM, depth: int) -> None:
    asked: list[dict[str, Any]] = [
        {"max_tokens": 20},
        {"max_tokens": 15, "temperature": 0.8, "seed": 4},
        {"structured_outputs": {"choice": ["positive", "negative"]}},
        {"max_tokens": 9, "logprobs": 2, "stop": ["the"]},
    ]
    expected = [llm.generate(REVIEW, each)[0] for each in asked]

    async def work(served: AsyncLLM) -> list[RequestOutput]:
        return list(await asyncio.gather(*(whole(served, REVIEW, **e) for e in asked * 3)))

    found = in_a_loop(work, overrides={"depth": depth})
    assert [(o.text, o.token_ids) for o in found] == [(o.text, o.token_ids) for o in expected * 3]


def test_leaving_the_loop_cancels_and_frees() -> None:
    async def work(served: AsyncLLM) -> int:
        stream = served.generate(STORY, ENDLESS)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        while served.service.unended:
            await asyncio.sleep(0.001)
        assert served.service.running == 0
        task = asyncio.ensure_future(whole(served, STORY, max_tokens=400, ignore_eos=True))
        while not served.service.running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while served.service.unended:
            await asyncio.sleep(0.001)
        return served.service.totals.tokens

    assert 0 < in_a_loop(work) < 780


def test_a_drain_serves_what_runs_and_refuses_what_comes() -> None:
    async def work(served: AsyncLLM) -> RequestOutput:
        stream = await served.submit(STORY, {"max_tokens": 60, "ignore_eos": True})
        draining = asyncio.ensure_future(served.drain(200))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="draining"):
            await served.submit(STORY, SHORT)
        last = [each async for each in stream][-1].output
        assert await draining
        assert last is not None
        return last

    assert in_a_loop(work).finish_reason == "length"


def test_a_drain_that_takes_too_long_says_so() -> None:
    async def work(served: AsyncLLM) -> bool:
        await served.submit(STORY, ENDLESS)
        return await served.drain(0.0)

    assert not in_a_loop(work)


def test_what_cannot_be_served_is_raised_before_anything_streams() -> None:
    async def work(served: AsyncLLM) -> None:
        with pytest.raises(RequestError, match="outside the model's vocabulary"):
            await served.submit([10**6], SHORT)
        with pytest.raises(RequestError, match="temperature"):
            await served.submit(STORY, {"temperature": -1})

    in_a_loop(work)


def test_a_loop_that_is_closed_is_not_kept() -> None:
    async def once(served: AsyncLLM) -> ref[asyncio.AbstractEventLoop]:
        await whole(served, STORY, max_tokens=2)
        return ref(asyncio.get_running_loop())

    with staying_young() as collect:
        served = AsyncLLM(pipeline="async_grammar")
        found = [asyncio.run(once(served)) for _ in range(3)]
        while served.service.unended:
            sleep(0.001)
        collect()
        assert [each() for each in found] == [None] * 3
        assert len(served._mailboxes) == 0
        asyncio.run(served.close())


def test_text_that_is_held_back_belongs_to_an_output_that_others_end(service: Service) -> None:
    """A stop string might have begun in it, or a character not have ended."""
    plain = Reader(service, STORY, max_tokens=60, ignore_eos=True)
    plain.rest()
    text = plain.ticket.output().text
    reader = Reader(service, STORY, max_tokens=200, ignore_eos=True, stop=[text + "\0"])
    heard = [reader.next() for _ in range(4)]
    service.cancel(reader.ticket)
    heard += reader.rest()
    output = reader.ticket.output()
    assert output.finish_reason == "cancelled"
    written = service.intake.tokenizer.decode(list(output.token_ids), skip_special_tokens=True)
    assert output.text.strip() == f"{written}".strip() != ""
    assert "".join(each.text for each in heard) == output.text


def test_a_loop_that_is_closed_does_not_disturb_the_engine() -> None:
    served = AsyncLLM(pipeline="async_grammar")

    async def leave() -> None:
        await served.submit(STORY, {"max_tokens": 50, "ignore_eos": True})

    asyncio.run(leave())

    async def stay() -> RequestOutput:
        output = await whole(served, STORY, max_tokens=5)
        while served.service.unended:
            await asyncio.sleep(0.001)
        await served.close()
        return output

    assert asyncio.run(stay()).finish_reason == "length"
    assert served.service.totals.tokens == 55


def test_a_decoder_that_fails_ends_its_own_request_alone(service: Service) -> None:
    class Broken:
        def push(self, tokens: Any) -> Any:
            raise IndexError("piece id is out of range")

        def finish(self) -> str:
            raise IndexError("piece id is out of range")

    told = [SimpleQueue[Increment](), SimpleQueue[Increment]()]
    tickets = [service.ticket(STORY, SHORT, each.put, id="one") for each in told]
    broken: Any = Broken()
    tickets[0].requests[0].decoder = broken
    service.begin(tickets)
    outputs = []
    for each in told:
        while (output := each.get(timeout=60).output) is None:
            pass
        outputs.append(output)
    assert "piece id is out of range" in f"{outputs[0].error}"
    assert outputs[0].token_ids == (), "nobody was told of any"
    assert outputs[1].error is None
    assert len(outputs[1].token_ids) == 6


@pytest.mark.parametrize("salt", ["text", None])
def test_a_salt_that_is_not_bytes_is_refused(service: Service, salt: Any) -> None:
    with pytest.raises(RequestError, match="cache_salt must be bytes, not"):
        service.submit(STORY, SHORT, lambda _: None, id="one", cache_salt=salt)


def test_what_is_handed_in_for_a_loop_that_has_ended_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = AsyncLLM(pipeline="async")
    try:
        begun, going = threading.Event(), threading.Event()
        encode = served.service.intake.prompts.encode

        def slowly(prompt: Any) -> Any:
            begun.set()
            assert going.wait(60)
            return encode(prompt)

        monkeypatch.setattr(served.service.intake.prompts, "encode", slowly)

        async def leaves() -> None:
            task = asyncio.ensure_future(served.submit(STORY, ENDLESS))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            going.set()

        asyncio.run(leaves())
        while not served.service.ended and not served.service.failure:
            sleep(0.01)
        assert served.service.ended == {"cancelled": 1}
    finally:
        asyncio.run(served.close())


def test_a_prompts_own_id_names_its_stream() -> None:
    async def read() -> list[str]:
        async with AsyncLLM(pipeline="async") as served:
            lines: list[Any] = [{"id": "mine", "prompt": STORY, "max_tokens": 2}, STORY]
            found = []
            for line in lines:
                async for increment in served.generate(line, SHORT):
                    if increment.output is not None:
                        found.append(increment.output.id)
            return found

    mine, counted = asyncio.run(read())
    assert mine == "mine"
    assert counted.isdecimal()
