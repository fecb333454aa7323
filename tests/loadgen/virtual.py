"""An event loop whose time passes only while nobody has anything to do.

So a scripted server takes exactly as long as its script says, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from stepweave.loadgen.ask import Ask
from stepweave.loadgen.reading import Reading

T = TypeVar("T")


class _Instant(selectors.SelectSelector):
    """Never waits: it moves its loop's clock on instead."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for something that never comes"
            self.now_s += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock begins at 0."""

    def __init__(self) -> None:
        self._instant = _Instant()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now_s

    def pass_time(self, seconds: float) -> None:
        """Somebody works for so long, and nobody else can meanwhile."""
        self._instant.now_s += seconds


def virtually(main: Callable[[], Awaitable[T]]) -> T:
    """Run it on virtual time."""

    async def called() -> T:
        return await main()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(called())


def clock() -> float:
    """The time of the loop that runs."""
    return asyncio.get_running_loop().time()


class Scripted:
    """A server that answers each request by a script: (seconds to wait, chunk) after one another.

    A chunk is the data of an event. `sent` has the requests in the order in which they came.
    """

    def __init__(self, *scripts: Iterable[tuple[float, str]]) -> None:
        self._scripts = [list(script) for script in scripts]
        self.sent: list[Ask] = []

    async def __call__(self, ask: Ask, reading: Reading) -> None:
        script = self._scripts[len(self.sent) % len(self._scripts)]
        self.sent.append(ask)
        for seconds, data in script:
            await asyncio.sleep(seconds)
            reading.event(data, clock())


def chunk(text: str = "", *, finish: str | None = None, usage: Any = None) -> str:
    """The data of one event of a chat."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": usage})


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, **details}


def total(prompt: int, completion: int, cached: int | None = None) -> str:
    """The last chunk, with the usage and no choice."""
    return json.dumps({"choices": [], "usage": usage(prompt, completion, cached)})
