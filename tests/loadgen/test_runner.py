"""Requests are sent when they are due, no more at once than the limit, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from stepweave.loadgen.ask import Ask
from stepweave.loadgen.outcome import peak_concurrency
from stepweave.loadgen.reading import Reading
from stepweave.loadgen.runner import Ran, Runner, Seen
from tests.loadgen.virtual import Scripted, chunk, clock, virtually

TWO_SECONDS = [(1.0, chunk("a")), (1.0, chunk("b", finish="stop"))]


def ran(
    server: Scripted, offsets: list[float], limit: int | None = None, stop_s: float | None = None
) -> tuple[Ran, list[Seen]]:
    seen: list[Seen] = []

    async def main() -> Ran:
        runner = Runner(server, limit=limit, clock=clock, on_progress=seen.append)
        if stop_s is not None:
            asyncio.get_running_loop().call_later(stop_s, runner.stop)
        return await runner.run([Ask(str(k), "x") for k in range(len(offsets))], offsets)

    return virtually(main), seen


def test_each_request_is_sent_when_it_is_due() -> None:
    found, _ = ran(Scripted(TWO_SECONDS), [0.0, 0.5, 0.5, 4.0])
    assert [each.sent_s for each in found.outcomes] == [0.0, 0.5, 0.5, 4.0]
    assert [each.due_s for each in found.outcomes] == [0.0, 0.5, 0.5, 4.0]
    assert [each.ended_s for each in found.outcomes] == [2.0, 2.5, 2.5, 6.0]
    assert (found.began_s, found.ended_s, found.interrupted) == (0.0, 6.0, False)
    assert peak_concurrency(found.outcomes) == 3


def test_no_more_run_at_once_than_the_limit_and_they_go_in_order() -> None:
    server = Scripted(TWO_SECONDS)
    found, _ = ran(server, [0.0] * 5, limit=2)
    assert [each.sent_s for each in found.outcomes] == [0.0, 0.0, 2.0, 2.0, 4.0]
    assert [each.due_s for each in found.outcomes] == [0.0] * 5
    assert [ask.name for ask in server.sent] == ["0", "1", "2", "3", "4"]
    assert peak_concurrency(found.outcomes) == 2


def test_a_failure_is_an_outcome_and_the_others_go_on() -> None:
    found, seen = ran(Scripted([(1.0, '{"error": "full"}')], TWO_SECONDS), [0.0, 0.0])
    assert [each.error for each in found.outcomes] == ["full", None]
    assert (seen[-1].ended, seen[-1].running, seen[-1].failed) == (2, 0, 1)


def test_progress_tells_of_every_beginning_and_end() -> None:
    _, seen = ran(Scripted(TWO_SECONDS), [0.0, 1.0])
    assert seen == [
        Seen(0, 1, 0, 0),
        Seen(0, 2, 0, 0),
        Seen(1, 1, 0, 2),
        Seen(2, 0, 0, 4),
    ]


def test_stopped_early_it_keeps_what_was_done_and_sends_no_more() -> None:
    found, _ = ran(Scripted(TWO_SECONDS), [0.0, 1.5, 9.0], stop_s=3.0)
    assert found.interrupted
    assert [each.error for each in found.outcomes] == [None, "cancelled"]
    assert (found.outcomes[1].ended_s, found.outcomes[1].tokens) == (3.0, 1)
    assert found.ended_s == 3.0


def test_a_fault_of_a_source_is_not_taken_for_a_failed_request() -> None:
    async def broken(ask: Ask, reading: Reading) -> None:
        raise KeyError(ask.name)

    async def main() -> Ran:
        return await Runner(broken, clock=clock).run([Ask("a", "x")], [0.0])

    with pytest.raises(ExceptionGroup) as raised:
        virtually(main)
    assert raised.group_contains(KeyError)
