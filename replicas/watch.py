"""Whether whoever works still does: a replica says so when it has nothing else to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

from .errors import ReplicaLost
from .work import BEAT, Message, lost_by

if TYPE_CHECKING:
    from ..requests.increment import Increment
    from ..serving.async_llm import AsyncStream

BEAT_S = 1.0
"""A replica that has nothing to say of a work for so long says that it lives."""

SILENCE_S = 10.0
"""One that says nothing at all for so long is taken for lost: stopped, or cut off."""

LOOKS = 4
"""How often the front looks in that time. It has to have looked, and found nothing, each time."""


async def beating(stream: AsyncStream, beat_s: float = BEAT_S) -> AsyncGenerator[Increment | None]:
    """The increments of a stream; None where there was none for `beat_s` seconds."""
    while not stream.ended:
        try:
            async with asyncio.timeout(beat_s):
                found = await anext(stream)
        except TimeoutError:
            yield None
        else:
            yield found


async def watched(
    messages: AsyncIterator[Message],
    *,
    waits: Callable[[], bool] = lambda: False,
    silence_s: float = SILENCE_S,
) -> AsyncGenerator[Message]:
    """The messages of a replica, without its signs of life.

    Raises `ReplicaLost` where it says nothing for `silence_s` seconds, at a message by which it
    serves no more, and where somebody else cancels the work. Nothing is expected of it before its
    first message while `waits()`: then nobody may have the work yet. Time in which this process
    did not run is not counted.
    """
    expected = False
    while True:
        coming: asyncio.Task[Message | None] = asyncio.ensure_future(_next(messages))
        try:
            await _until(coming, silence_s, waits if not expected else lambda: False)
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait({coming})
        if coming.cancelled():  # by the library that carries messages: nobody here has given up
            raise ReplicaLost("the work was cancelled on its way")
        message = coming.result()
        if message is None:
            return
        if (why := lost_by(message)) is not None:
            raise ReplicaLost(why)
        expected = True
        if message != BEAT:
            yield message


async def _next(messages: AsyncIterator[Message]) -> Message | None:
    return await anext(messages, None)


async def _until(
    coming: asyncio.Task[Message | None], silence_s: float, waits: Callable[[], bool]
) -> None:
    """Until it is done. Raises `ReplicaLost` when it has not been for too long."""
    look_s, looks = silence_s / LOOKS, 0
    loop = asyncio.get_running_loop()
    while not coming.done():
        before, excused = loop.time(), waits()
        await asyncio.wait({coming}, timeout=look_s)
        # Late: this process was stopped itself, or starved.
        excused |= waits() or loop.time() - before > 2 * look_s
        looks = 0 if excused else looks + 1
        if looks == LOOKS and not coming.done():
            raise ReplicaLost(f"it has said nothing for {silence_s:g} s")
