"""A replica that says nothing is taken for lost; on virtual time, so exactly when it should be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from stepweave.replicas.completion import Completion
from stepweave.replicas.errors import ReplicaLost
from stepweave.replicas.fleet import Routed
from stepweave.replicas.watch import BEAT_S, LOOKS, SILENCE_S, beating, watched
from stepweave.replicas.work import BEAT, TAKEN, Message, Work, ended, refused
from stepweave.requests.increment import Increment
from stepweave.requests.params import SamplingParams
from stepweave.requests.request import RequestOutput
from stepweave.serving.engine import EngineError
from tests.loadgen.virtual import VirtualLoop, clock, virtually

TOKEN: Message = {"text": "x", "token_ids": [5], "logprobs": None}
FOREVER = 1e9
Script = Sequence[tuple[float, Message]]


async def said(script: Script) -> AsyncGenerator[Message]:
    """Each message, so many seconds after the one before it."""
    for seconds, message in script:
        await asyncio.sleep(seconds)
        yield message


def heard(script: Script, waiting_s: float = 0.0) -> tuple[list[Message], float, str | None]:
    """What the front has of it, when it was over, and why."""
    found: list[Message] = []

    async def main() -> str | None:
        async with (
            aclosing(said(script)) as messages,
            aclosing(watched(messages, waits=lambda: clock() < waiting_s)) as told,
        ):
            try:
                async for each in told:
                    found.append(each)
            except ReplicaLost as lost:
                return lost.message
        return None

    async def timed() -> tuple[list[Message], float, str | None]:
        why = await main()
        return found, clock(), why

    return virtually(timed)


def test_a_replica_that_stops_in_mid_stream_is_lost_after_the_silence() -> None:
    found, at, why = heard([(0.0, TAKEN), (1.0, TOKEN), (FOREVER, TOKEN)])
    assert found == [TAKEN, TOKEN]
    assert at == 1.0 + SILENCE_S
    assert why == f"it has said nothing for {SILENCE_S:g} s"


def test_one_that_never_takes_its_work_is_lost_too() -> None:
    assert heard([(FOREVER, TAKEN)])[1:] == (SILENCE_S, f"it has said nothing for {SILENCE_S:g} s")


def test_signs_of_life_are_enough_and_nobody_else_sees_them() -> None:
    script = [(0.0, TAKEN), *[(SILENCE_S * 0.9, BEAT)] * 20, (1.0, TOKEN)]
    found, at, why = heard(script)
    assert (found, why) == ([TAKEN, TOKEN], None)
    assert at == pytest.approx(SILENCE_S * 18 + 1)


def test_while_nobody_may_have_it_nothing_is_expected_but_then_it_is() -> None:
    found, at, why = heard([(80.0, TAKEN)], waiting_s=75.0)
    assert (found, at, why) == ([TAKEN], 80.0, None)
    found, at, why = heard([(FOREVER, TAKEN)], waiting_s=75.0)
    assert 75.0 + SILENCE_S <= at <= 75.0 + SILENCE_S * (1 + 1 / LOOKS)
    # Who has begun is expected to go on, however full the others are.
    assert heard([(0.0, TAKEN), (FOREVER, TOKEN)], waiting_s=FOREVER)[1] == SILENCE_S


def test_an_engine_that_serves_no_more_is_lost_at_once() -> None:
    found, at, why = heard([(1.0, refused(EngineError("it drains"))), (1.0, TOKEN)])
    assert (found, at, why) == ([], 1.0, "it drains")


@pytest.mark.parametrize("before", [[], [TAKEN, TOKEN]], ids=["first", "later"])
def test_a_work_that_somebody_else_cancelled_is_lost_and_its_listener_is_not_cancelled(
    before: list[Message],
) -> None:
    async def cancelled() -> AsyncGenerator[Message]:
        for each in before:
            yield each
        raise asyncio.CancelledError

    async def main() -> list[Message]:
        found: list[Message] = []

        async def listen() -> None:
            async for each in watched(cancelled()):
                found.append(each)

        with pytest.raises(ReplicaLost, match="cancelled"):
            await listen()
        return found

    assert virtually(main) == before


def test_whoever_listens_can_be_cancelled_and_the_replica_is_told() -> None:
    ended: list[float] = []

    async def endless() -> AsyncGenerator[Message]:
        try:
            await asyncio.sleep(FOREVER)
            yield TAKEN
        finally:
            ended.append(clock())

    async def main() -> None:
        async def listen() -> None:
            async for _ in watched(endless()):
                raise AssertionError("nothing is said")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(listen(), 3.0)

    virtually(main)
    assert ended == [3.0]


def test_time_in_which_the_front_itself_did_not_run_is_nobodys_silence() -> None:
    async def main() -> list[Message]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for at in (3.0, 6.0, 9.0):  # this process is stopped for an hour, again and again
            loop.call_at(at, loop.pass_time, 3600.0)
        return [each async for each in watched(said([(0.0, TAKEN), (9.5, TOKEN)]))]

    assert virtually(main) == [TAKEN, TOKEN]


class Quiet:
    """A stream of an engine, as `beating` knows it: increments at these times."""

    def __init__(self, *at_s: float) -> None:
        self._left = [*at_s]

    @property
    def ended(self) -> bool:
        return not self._left

    async def __anext__(self) -> Increment:
        await asyncio.sleep(max(self._left[0] - clock(), 0.0))
        return Increment("a", 0, f"{self._left.pop(0)}")


def test_a_replica_says_that_it_lives_whenever_it_has_nothing_to_say() -> None:
    stream: Any = Quiet(0.5, 0.7, 3.8, 4.0)

    async def main() -> list[tuple[float, str | None]]:
        return [
            (round(clock(), 3), None if each is None else each.text)
            async for each in beating(stream)
        ]

    assert BEAT_S == 1.0
    assert virtually(main) == [
        *[(0.5, "0.5"), (0.7, "0.7"), (1.7, None), (2.7, None), (3.7, None)],
        *[(3.8, "3.8"), (4.0, "4.0")],
    ]


class Stoppable:
    """A replica that settles a token each second, until it is stopped: then it does nothing."""

    def __init__(self, name: str, stops_s: float = FOREVER) -> None:
        self.name, self.stops_s = name, stops_s
        self.worked = 0

    async def generate(self, work: Message) -> AsyncGenerator[Message]:
        self.worked += 1
        settled = len(work["params"].get("settled_token_ids", ()))
        await self._runs()
        yield TAKEN
        for token in range(settled, 30):
            await asyncio.sleep(1.0)
            await self._runs()
            yield {**TOKEN, "text": f"{token} ", "token_ids": [token]}
        yield ended(RequestOutput(work["id"], "", "", tuple(range(30)), "length"), None)

    async def _runs(self) -> None:
        if clock() >= self.stops_s:
            await asyncio.Event().wait()


def test_sixteen_streams_of_a_stopped_replica_go_on_elsewhere_and_nothing_is_told_twice() -> None:
    stopped, other = Stoppable("a", stops_s=10.0), Stoppable("b")
    told: list[list[Increment]] = [[] for _ in range(16)]

    async def main() -> tuple[float, list[Completion], Routed]:
        fleet = Routed()
        fleet.add(stopped)
        fleet.add(other)
        works = [
            Completion(fleet, Work(f"{index}", 0, (1,), SamplingParams()), told[index].append)
            for index in range(16)
        ]
        await asyncio.gather(*(each.run() for each in works))
        return clock(), works, fleet

    ended_s, completions, fleet = virtually(main)
    assert (stopped.worked, fleet.live) == (8, 1)
    assert other.worked == 16
    assert sum(each.moves for each in completions) == 8
    for each, increments in zip(completions, told, strict=True):
        assert [token for one in increments for token in one.token_ids] == [*range(30)]
        assert each.output is not None
        assert each.output.error is None
    # The 9 tokens before it was stopped are not computed again.
    assert ended_s == pytest.approx(9 + SILENCE_S + 21, abs=1.0)
