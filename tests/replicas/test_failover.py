"""A replica is lost in mid-stream: what it worked on goes on elsewhere, and nobody can tell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepweave import AsyncLLM, SamplingParams
from stepweave.replicas.completion import FUTILE_MOVES, PATIENCE_S, Completion
from stepweave.replicas.errors import ReplicaLost
from stepweave.replicas.fleet import Routed
from stepweave.replicas.front import FleetStream, ManyEngines
from stepweave.replicas.hosted import about
from stepweave.replicas.watch import watched
from stepweave.replicas.work import TAKEN, Message, Work, refused
from stepweave.requests.increment import Increment
from stepweave.requests.params import RequestError
from stepweave.requests.request import RequestOutput
from stepweave.serving.engine import EngineError
from stepweave.structured.grammar import GrammarError
from stepweave.structured.service import QueueFull
from tests.replicas.fleets import Cut, Local, after

STORY = "Write a short story about a fox named Ida."
PERSON = "Extract name and age as JSON: Max Tanaka is 61 years old."


@pytest.fixture(scope="module")
def llm(runner: asyncio.Runner) -> Iterator[AsyncLLM]:
    made = AsyncLLM(overrides={"graphs": False})
    yield made
    runner.run(made.close())


async def whole(stream: FleetStream) -> tuple[list[Increment], list[RequestOutput]]:
    """All increments of a stream, and its outputs by choice."""
    told: list[Increment] = []
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def heard(increments: Any) -> None:
        told.extend(increments)
        if sum(each.output is not None for each in told) == len(stream.completions):
            over.set_result(None)

    stream.listen(heard)
    await over
    outputs = {each.index: each.output for each in told if each.output is not None}
    return told, [output for _, output in sorted(outputs.items())]


@asynccontextmanager
async def front_of(llm: AsyncLLM, *cuts: Cut) -> AsyncGenerator[tuple[ManyEngines, list[Local]]]:
    """A front over replicas of which the first are lost at these cuts, and one is not."""
    fleet = Routed()
    replicas = [Local(f"r{index}", llm, cut) for index, cut in enumerate(cuts)]
    replicas.append(Local("r9", llm))
    for each in replicas:
        fleet.add(each)
    front = ManyEngines(llm.config, fleet, about(llm))
    try:
        yield front, replicas
    finally:
        await front.close()


ASKED = [
    (STORY, SamplingParams(max_tokens=24)),
    (STORY, SamplingParams(max_tokens=24, temperature=0.9, seed=7, repetition_penalty=1.2)),
    (STORY, SamplingParams(max_tokens=20, logprobs=2, stop="was", temperature=0.8, seed=9)),
    (PERSON, SamplingParams(max_tokens=40, structured_outputs={"json_object": True})),
]


def test_every_stream_has_the_tokens_and_the_text_of_an_undisturbed_run(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def served(*cuts: Cut) -> tuple[list[Any], int]:
        async with front_of(llm, *cuts) as (front, replicas):
            streams = await asyncio.gather(*(front.submit(*each) for each in ASKED * 4))
            found = await asyncio.gather(*map(whole, streams))
            assert all(each.lost for each in replicas[: len(cuts)])
            return found, front.moves

    plain, moves = runner.run(served())
    assert moves == 0
    disturbed, moves = runner.run(served(after(6), after(70)))
    assert moves > 8
    for (told, [output]), (_, [expected]), (_, params) in zip(
        disturbed, plain, ASKED * 4, strict=True
    ):
        assert output.error is None
        assert output.token_ids == expected.token_ids
        assert output.text == expected.text
        assert output.finish_reason == expected.finish_reason
        # Every token and every letter is told once, in order, as if nothing had been.
        assert sum((each.token_ids for each in told), ()) == expected.token_ids
        assert "".join(each.text for each in told) == expected.text
        if params.logprobs is None:
            assert output.logprobs is None
        else:
            assert [each.token for each in output.logprobs or ()] == [*expected.token_ids]
        assert output.timings is not None
        assert output.timings.total_s is not None


def test_wherever_the_cut_is_nothing_is_lost_or_told_twice(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    prompt, params = ASKED[2]

    async def served() -> None:
        async with front_of(llm) as (front, _):
            _, [expected] = await whole(await front.submit(prompt, params))
        tokens = len(expected.token_ids)
        for cut in (0, 1, tokens - 1, tokens):
            async with front_of(llm, after(cut)) as (front, replicas):
                told, [output] = await whole(await front.submit(prompt, params))
                assert replicas[0].lost
                assert output.token_ids == expected.token_ids
                assert "".join(each.text for each in told) == output.text == expected.text

    runner.run(served())


def test_lost_behind_the_last_token_it_says_what_its_grammar_says(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    schema = {"type": "array", "items": {"type": "integer", "multipleOf": 3}, "minItems": 40}
    params = SamplingParams(max_tokens=12, structured_outputs={"json": schema})

    async def served(*cuts: Cut) -> RequestOutput:
        async with front_of(llm, *cuts) as (front, replicas):
            _, [output] = await whole(await front.submit(PERSON, params))
            assert all(each.lost for each in replicas[: len(cuts)])
            return output

    expected = runner.run(served())
    assert expected.notes
    found = runner.run(served(after(len(expected.token_ids))))
    assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
    assert (found.notes, found.warnings) == (expected.notes, expected.warnings)


def test_each_of_n_completions_is_what_it_is_on_one_engine(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    params = SamplingParams(max_tokens=12, n=3, temperature=1.0, seed=5)

    async def served() -> None:
        async with await llm.submit(STORY, params) as stream:
            expected = [each async for each in stream if each.output is not None]
        async with front_of(llm, after(9)) as (front, _):
            _, outputs = await whole(await front.submit(STORY, params))
        own = {each.index: each.output for each in expected}
        for index, output in enumerate(outputs):
            assert output.text == own[index].text  # type: ignore[union-attr]

    runner.run(served())


def test_what_an_engine_refuses_is_raised_as_by_one_engine(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def refused_by(prompt: Any, **params: Any) -> BaseException:
        async with front_of(llm) as (front, _):
            with pytest.raises((RequestError, GrammarError)) as caught:
                await front.submit(prompt, SamplingParams(**params))
            assert front.running == front.queued == 0
            return caught.value

    async def served() -> None:
        error = await refused_by([5] * 5000)
        assert getattr(error, "code", None) == "SW-LENGTH"
        error = await refused_by(STORY, stop_token_ids=[10**6], n=2)
        assert "outside the model's vocabulary" in f"{error}"
        async with front_of(llm) as (front, _):
            wrong = SamplingParams(structured_outputs={"json": '{"type": "nonsense"}'})
            stream = await front.submit(STORY, wrong)
            _, [output] = await whole(stream)
            assert (output.finish_reason, stream.blame) == ("error", "grammar")

    runner.run(served())


def test_cancelled_it_has_what_was_settled_and_its_replica_works_no_more(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def served() -> None:
        async with front_of(llm) as (front, _):
            stream = await front.submit(STORY, SamplingParams(max_tokens=400, ignore_eos=True))
            first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def heard(_: Sequence[Increment]) -> None:
                if not first.done():
                    first.set_result(None)

            stream.listen(heard)
            await first
            told: list[Increment] = []
            stream.listen(told.extend)
            stream.cancel()
            while front.running:
                await asyncio.sleep(0)
            assert told[-1].output is not None
            assert told[-1].output.finish_reason == "cancelled"
            assert 0 < len(told[-1].output.token_ids) < 400
            while llm.service.unended:
                await asyncio.sleep(0)

    runner.run(served())


def test_cancelled_its_output_begins_with_the_tokens_that_it_came_with(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def served() -> None:
        async with front_of(llm) as (front, _):
            _, [begun] = await whole(await front.submit(STORY, SamplingParams(max_tokens=10)))
            params = SamplingParams(
                max_tokens=400, ignore_eos=True, settled_token_ids=begun.token_ids
            )
            stream = await front.submit(STORY, params)
            stream.cancel()
            told, [output] = await whole(stream)
            assert output.finish_reason == "cancelled"
            new = sum((each.token_ids for each in told), ())
            assert output.token_ids == (*begun.token_ids, *new)
            assert output.text == begun.text + "".join(each.text for each in told)

    runner.run(served())


def test_a_front_that_drains_ends_what_runs_and_takes_nothing_in(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def served() -> None:
        async with front_of(llm) as (front, _):
            stream = await front.submit(STORY, SamplingParams(max_tokens=8))
            assert (front.running, front.queued) == (1, 0)
            assert await front.drain(100)
            _, [output] = await whole(stream)
            assert output.finish_reason == "length"
            with pytest.raises(EngineError, match="draining"):
                await front.submit(STORY)

    runner.run(served())


# -- what a completion makes of its replicas' messages ---------------------------------------

WORK = Work("a", 0, (1, 2), SamplingParams())
TOKEN: Message = {"text": "x", "token_ids": [5], "logprobs": None}


class Scripted:
    """A fleet whose replicas say these messages, one list after the other; the last for ever."""

    live = 1

    def __init__(self, *scripts: list[Message]) -> None:
        self.scripts = [*scripts]
        self.asked: list[Work] = []

    def generate(self, work: Work) -> AsyncGenerator[Message]:
        self.asked.append(work)
        return watched(said(self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]))


async def said(script: list[Message]) -> AsyncGenerator[Message]:
    for each in script:
        yield each
    raise ReplicaLost("gone")


def outcome(
    monkeypatch: pytest.MonkeyPatch,
    *scripts: list[Message],
    waits: bool = False,
    patience_s: float = PATIENCE_S,
) -> tuple[Completion, Scripted, list[Increment]]:
    """A completion after its end."""
    monkeypatch.setattr("stepweave.replicas.completion._FIRST_PAUSE_S", 0.0)
    fleet, told = Scripted(*scripts), list[Increment]()

    async def run() -> Completion:
        made = Completion(fleet, WORK, told.append, waits=waits, patience_s=patience_s)
        await made.run()
        return made

    return asyncio.run(run()), fleet, told


def test_what_never_gets_on_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    done, fleet, told = outcome(monkeypatch, [TAKEN, TOKEN], [TAKEN])
    assert len(fleet.asked) == FUTILE_MOVES + 2
    assert {each.params.settled_token_ids for each in fleet.asked[1:]} == {(5,)}
    assert done.blame == "engine"
    assert done.output is not None
    assert done.output.error == "no replica gets on with it: ReplicaLost: gone"
    assert (done.output.text, done.output.token_ids) == ("x", (5,))
    assert told[-1].output is done.output


def test_as_long_as_it_gets_on_it_moves_as_often_as_it_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = {"output": _output((5,) * 20), "blame": None}
    done, fleet, told = outcome(monkeypatch, *[[TAKEN, TOKEN]] * 20, [TAKEN, end])
    assert len(fleet.asked) == 21
    assert done.output is not None
    assert done.output.error is None
    assert sum(len(each.token_ids) for each in told) == 20


def test_an_engine_whose_run_has_ended_is_as_good_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = {"output": {**_output((5,)), "error": "out of memory"}, "blame": "engine"}
    end = {"output": _output((5, 5)), "blame": None}
    done, fleet, _ = outcome(monkeypatch, [TAKEN, TOKEN, broken], [TAKEN, TOKEN, end])
    assert fleet.asked[1].params.settled_token_ids == (5,)
    assert done.output is not None
    assert done.output.error is None


def test_text_that_a_replica_held_back_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends a work tells it; where that goes on elsewhere, it is written again there."""
    held: Message = {"text": "y", "token_ids": [], "logprobs": None}
    broken: Message = {"output": {**_output((5,)), "error": "out of memory"}, "blame": "engine"}
    end = {"output": {**_output((5, 5)), "text": "xyxy"}, "blame": None}
    later: Message = {"text": "yx", "token_ids": [5], "logprobs": None}
    done, _, told = outcome(monkeypatch, [TAKEN, TOKEN, held, broken], [TAKEN, later, held, end])
    assert done.output is not None
    assert "".join(each.text for each in told) == done.output.text == "xyxy"
    assert told[-1].output is done.output


def test_once_begun_it_waits_where_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    full = refused(RequestError("full", code="SW-QUEUE-FULL"))
    end = {"output": _output((5,)), "blame": None}
    done, fleet, _ = outcome(monkeypatch, [TAKEN, TOKEN], *[[full]] * 12, [TAKEN, end])
    assert len(fleet.asked) == 14
    assert done.output is not None
    assert done.output.error is None
    done, fleet, told = outcome(monkeypatch, [full])
    assert (len(fleet.asked), told) == (1, [])
    with pytest.raises(RequestError):
        done.taken.result()


def test_what_may_wait_does_so_before_it_has_begun_too(monkeypatch: pytest.MonkeyPatch) -> None:
    end = {"output": _output((5,)), "blame": None}
    full = [refused(RequestError("full", code="SW-QUEUE-FULL"))]
    grammars = [refused(QueueFull("full"))]
    script = [*[full, grammars] * 12, [TAKEN, TOKEN, end]]
    done, fleet, _ = outcome(monkeypatch, *script, waits=True)
    assert len(fleet.asked) == 25
    assert done.output is not None
    assert done.output.error is None
    done, fleet, _ = outcome(monkeypatch, [refused(RequestError("too long"))], waits=True)
    assert len(fleet.asked) == 1
    assert isinstance(done.taken.exception(), RequestError)


def test_a_replica_that_drains_hands_on(monkeypatch: pytest.MonkeyPatch) -> None:
    end = {"output": _output(()), "blame": None}
    done, fleet, _ = outcome(monkeypatch, [refused(EngineError("it drains"))], [TAKEN, end])
    assert len(fleet.asked) == 2
    drains = refused(EngineError("it drains"))
    done, _, told = outcome(monkeypatch, [drains], patience_s=0.1)
    with pytest.raises(EngineError, match="no replica gets on"):
        done.taken.result()
    assert told == []


def test_a_stream_waits_for_the_successor_of_the_only_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its engine has failed, though its process lives: it refuses at once, however often asked."""
    failed = [refused(EngineError("the engine has failed"))]
    end = {"output": _output((5, 5)), "blame": None}
    done, fleet, _ = outcome(
        monkeypatch, [TAKEN, TOKEN], *[failed] * 40, [TAKEN, TOKEN, end], patience_s=300.0
    )
    assert len(fleet.asked) == 42
    assert done.output is not None
    assert done.output.error is None
    done, fleet, _ = outcome(monkeypatch, [TAKEN, TOKEN], failed, patience_s=0.1)
    assert len(fleet.asked) > FUTILE_MOVES
    assert done.output is not None
    assert done.output.error == "no replica gets on with it: ReplicaLost: the engine has failed"


@pytest.mark.parametrize("begun", [False, True], ids=["first", "later"])
def test_whatever_goes_wrong_whoever_listens_is_told(begun: bool) -> None:
    class Wrong(Scripted):
        async def generate(self, work: Work) -> AsyncGenerator[Message]:
            if begun:
                yield TAKEN
                yield TOKEN
            raise ZeroDivisionError("a fault of ours")

    told = list[Increment]()

    async def run() -> Completion:
        made = Completion(Wrong([]), WORK, told.append)
        await made.run()
        return made

    done = asyncio.run(run())
    said = "ZeroDivisionError: a fault of ours"
    if begun:
        assert done.output is not None
        assert (done.output.error, done.output.token_ids, done.blame) == (said, (5,), "engine")
        assert told[-1].output is done.output
    else:
        with pytest.raises(EngineError, match=said):
            done.taken.result()


def test_a_replica_that_never_answers_is_given_up() -> None:
    class Silent(Scripted):
        async def generate(self, work: Work) -> AsyncGenerator[Message]:
            if not self.asked:
                self.asked.append(work)
                await asyncio.Event().wait()
            yield TAKEN
            yield {"output": _output(()), "blame": None}

    async def run() -> Completion:
        made = Completion(Silent([]), WORK, lambda _: None, patience_s=0.01)
        await made.run()
        return made

    done = asyncio.run(run())
    assert done.moves == 1
    assert done.output is not None


def _output(tokens: tuple[int, ...]) -> dict[str, Any]:
    return {
        **{"id": "a", "prompt": "", "text": "x" * len(tokens), "token_ids": list(tokens)},
        **{"finish_reason": "length", "drafted": 0, "accepted": 0, "cached_tokens": 0},
        **{"error": None, "logprobs": None, "prompt_logprobs": None},
        **{"warnings": [], "notes": [], "choices": [], "timings": None},
    }


def test_waiting_for_a_place_in_a_queue_is_no_move(llm: AsyncLLM, runner: asyncio.Runner) -> None:
    """It was lost with one replica, and all others have full queues then."""

    async def served() -> tuple[int, int]:
        fleet = Scripted([TAKEN, TOKEN], [refused(RequestError("full", code="SW-QUEUE-FULL"))])
        front = ManyEngines(llm.config, fleet, about(llm))
        await front.submit("hi", SamplingParams(max_tokens=4))
        while len(fleet.asked) < 5:
            await asyncio.sleep(0.01)
        await front.close()
        return front.moves, len(fleet.asked)

    moves, asked = runner.run(served())
    assert moves == 1
    assert asked >= 5


def test_what_is_being_read_when_the_service_drains_does_not_begin(
    llm: AsyncLLM, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drained() -> int:
        fleet = Scripted([TAKEN])
        front = ManyEngines(llm.config, fleet, about(llm))
        reading, drained = threading.Event(), threading.Event()
        read = front._read

        def slow(*given: Any) -> Any:
            reading.set()
            drained.wait(60)
            return read(*given)

        monkeypatch.setattr(front, "_read", slow)
        asked = asyncio.create_task(front.submit("hi"))
        await asyncio.to_thread(reading.wait, 60)
        assert await front.drain()
        drained.set()
        with pytest.raises(EngineError, match="draining"):
            await asked
        await front.close()
        return len(fleet.asked)

    assert runner.run(drained()) == 0


def test_what_is_cancelled_before_its_first_turn_tells_who_waits(
    llm: AsyncLLM, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled() -> None:
        fleet = Scripted([TAKEN])
        front = ManyEngines(llm.config, fleet, about(llm))
        create = asyncio.create_task

        def at_once(coroutine: Any) -> Any:
            task = create(coroutine)
            task.cancel()
            return task

        asked = create(front.submit("hi"))
        monkeypatch.setattr(asyncio, "create_task", at_once)
        with pytest.raises(EngineError, match="ended before a replica took it in"):
            await asyncio.wait_for(asked, 60)
        monkeypatch.undo()
        assert front.queued == 0
        assert fleet.asked == []
        await front.close()

    runner.run(cancelled())


def test_a_drain_ends_what_no_replica_has_with_the_reason_and_whoever_gives_up_is_cancelled(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def drained() -> None:
        front = ManyEngines(llm.config, Routed(), about(llm))
        asked = asyncio.create_task(front.submit("hi", SamplingParams(n=2, temperature=1.0)))
        given_up = asyncio.create_task(front.submit("hi"))
        while front.queued < 3:
            await asyncio.sleep(0.01)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert not await front.drain(0.0)
        front.cancel_all()
        with pytest.raises(EngineError, match="draining"):
            await asyncio.wait_for(asked, 60)
        assert front.queued == 0
        await front.close()

    runner.run(drained())
