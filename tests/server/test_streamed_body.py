"""A streamed body: each piece is sent at once and in order, however slowly the client reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from stepweave.server.streamed_body import KEEP_ALIVE, StreamedBody

HEADERS = [(b"content-type", b"text/event-stream")]
START = {"type": "http.response.start", "status": 200, "headers": HEADERS}


class Connection:
    """Keeps what it is sent; while `reads` is cleared, a piece waits before it is taken."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.failure: Exception | None = None

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        if self.failure is not None:
            raise self.failure
        self.taken.append(message)

    @property
    def pieces(self) -> list[bytes]:
        return [each["body"] for each in self.taken if each["type"] == "http.response.body"]


def on_a_loop(scenario: Callable[[Connection, StreamedBody], Awaitable[Any]]) -> Connection:
    async def main() -> Connection:
        connection = Connection()
        await scenario(connection, StreamedBody(connection.send, connection.send, HEADERS))
        return connection

    return asyncio.run(main())


async def turns(many: int = 10) -> None:
    """Let every task go on as far as it can."""
    for _ in range(many):
        await asyncio.sleep(0)


def test_the_start_is_sent_with_the_first_piece_and_the_last_says_so() -> None:
    async def scenario(connection: Connection, body: StreamedBody) -> None:
        body.write(b"")
        await turns()
        assert connection.taken == []
        assert not body.begun
        body.write(b"a")
        assert body.begun
        await body.end(b"z")

    taken = on_a_loop(scenario).taken
    assert taken[0] == START
    assert [each["body"] for each in taken[1:]] == [b"a", b"z"]
    assert [each["more_body"] for each in taken[1:]] == [True, False]


def test_a_body_of_one_piece() -> None:
    async def scenario(connection: Connection, body: StreamedBody) -> None:
        await body.end(b"all")

    taken = on_a_loop(scenario).taken
    assert taken == [START, {"type": "http.response.body", "body": b"all", "more_body": False}]


def test_a_client_that_reads_has_each_piece_at_once() -> None:
    async def scenario(connection: Connection, body: StreamedBody) -> None:
        body.write(b"a")
        await turns()
        for piece in (b"b", b"c"):
            body.write(piece)
            assert connection.pieces[-1] == piece  # no task had a turn

    assert on_a_loop(scenario).pieces == [b"a", b"b", b"c"]


@pytest.mark.parametrize("begun", [False, True])
def test_pieces_wait_for_a_slow_client_and_are_sent_together(begun: bool) -> None:
    async def scenario(connection: Connection, body: StreamedBody) -> None:
        if begun:
            body.write(b"0")
            await turns()
        for _ in range(2):  # it stops reading twice
            connection.reads.clear()
            before = connection.pieces
            for piece in (b"a", b"b", b"c"):
                body.write(piece)
            await turns()
            assert connection.pieces == before
            connection.reads.set()
            await turns()
        body.write(b"d")
        connection.reads.clear()
        ending = asyncio.create_task(body.end(b"z"))
        await turns()
        assert not ending.done()
        connection.reads.set()
        await ending

    first = [b"0"] if begun else []
    assert on_a_loop(scenario).pieces == [*first, b"a", b"bc", b"a", b"bc", b"d", b"z"]


def test_what_the_connection_raises_is_raised_at_the_end() -> None:
    async def scenario(connection: Connection, body: StreamedBody) -> None:
        body.write(b"a")
        await turns()
        connection.reads.clear()
        body.write(b"b")
        body.write(b"c")
        connection.failure = OSError("gone")
        connection.reads.set()
        await turns()
        body.write(b"d")
        with pytest.raises(OSError, match="gone"):
            await body.end(b"z")

    assert on_a_loop(scenario).pieces == [b"a"]


def test_silence_is_broken_by_a_comment_and_nothing_else_is() -> None:
    async def scenario(connection: Connection, _: StreamedBody) -> None:
        looks = asyncio.Semaphore(0)
        body = StreamedBody(connection.send, connection.send, HEADERS, 60.0)

        async def sleep(seconds: float) -> None:
            assert seconds == 60.0
            await looks.acquire()

        async def look() -> None:
            looks.release()
            await turns()

        with pytest.MonkeyPatch.context() as patch, body.kept_alive():
            patch.setattr("stepweave.server.streamed_body.sleep", sleep)
            await look()
            assert connection.taken[0] == START
            body.write(b"a")
            await turns()
            await look()  # something was written since the last
            await look()
            body.write(b"b")
            await turns()
        await look()  # the block is over
        await body.end(b"c")
        assert connection.pieces == [KEEP_ALIVE, b"a", KEEP_ALIVE, b"b", b"c"]

    on_a_loop(scenario)
