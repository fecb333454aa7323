"""The front of many engines: what a service, or a program, hands its prompts to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from ..models.tokenizer import StreamDecoder
from ..requests.increment import Increment
from ..requests.params import SamplingParams
from ..serving.engine import EngineError
from ..serving.prompts import Prompt, Prompts
from .completion import Completion
from .fleet import About, Fleet
from .work import Work

if TYPE_CHECKING:
    from ..configs.schema import PipelineConfig
    from ..serving.async_llm import Listener
    from ..serving.ticket import Blame

POLL_S = 0.05
"""How often a drain looks whether everything has ended."""


class ManyEngines:
    """Takes prompts in, and has the replicas of a fleet complete them. For one event loop.

    Prompts become tokens here, so that a request can be sent to a replica that knows its beginning,
    and so that whatever comes of it can go on elsewhere. The form of answers, such as calls of
    tools, is made by whoever listens: no replica holds a part of it.
    """

    def __init__(
        self, config: PipelineConfig, fleet: Fleet, about: About, *, waits: bool = False
    ) -> None:
        """`waits`: prompts wait where the queues of all replicas are full, and are not refused."""
        self.config = config
        self.fleet = fleet
        self.limits = about.limits
        self.digest = about.digest
        self._prompts = Prompts(config, about.limits.context_length)
        self.tokenizer = self._prompts.tokenizer
        self.images = self._prompts.images
        self.most_characters = self._prompts.most_characters
        self._waits = waits
        self._ids = count()
        self._live: dict[Completion, asyncio.Task[None]] = {}
        self._refusal: str | None = None
        self._moves = 0  # of completions that have ended

    @property
    def alive(self) -> bool:
        """Whether any replica takes work."""
        return self.fleet.live > 0

    @property
    def running(self) -> int:
        """Completions that a replica has taken in."""
        return sum(each.taken.done() for each in self._live)

    @property
    def queued(self) -> int:
        """Completions that no replica has taken in yet."""
        return len(self._live) - self.running

    @property
    def moves(self) -> int:
        """How often a completion has gone on at another replica."""
        return self._moves + sum(each.moves for each in self._live)

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        id: str | None = None,
        cache_salt: bytes = b"",
    ) -> FleetStream:
        """Take one prompt in: each of its completions has a replica then.

        Raises:
            RequestError: what an engine cannot serve, or, with code SW-QUEUE-FULL, not now.
            GrammarError: a grammar that is wrong to begin with.
            ConfigError: a prompt whose keys are wrong.
            EngineError: while this front drains, or ends it before a replica has it, or where no
                replica gets on with it.
        """
        if self._refusal is not None:
            raise EngineError(self._refusal)
        name = str(next(self._ids)) if id is None else id
        tokens, asked, brought = await asyncio.to_thread(self._read, prompt, params, name)
        if self._refusal is not None:  # since it was read
            raise EngineError(self._refusal)
        stream = FleetStream(tokens)
        for work in works(name, tokens, asked, cache_salt):
            completion = Completion(self.fleet, work, stream.tell, self._waits, brought)
            task = asyncio.create_task(completion.run())
            self._live[completion] = task
            task.add_done_callback(partial(self._over, completion))
            stream.add(completion, task)
        try:
            await asyncio.gather(*(each.taken for each in stream.completions))
        except BaseException as error:
            stream.cancel()
            await asyncio.gather(
                *(each.taken for each in stream.completions), return_exceptions=True
            )
            caller = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and not (caller and caller.cancelling()):
                said = self._refusal or "the request was ended before a replica took it in"
                raise EngineError(said) from error
            raise
        return stream

    def start(self) -> None:
        """Nothing: replicas run already."""

    async def drain(self, seconds: float | None = None) -> bool:
        """Take nothing in any more, and wait until all has ended; whether it did in time."""
        self._refusal = "this service is draining: it takes no more requests"
        async with asyncio.timeout(seconds) as limit:
            try:
                while self._live:
                    await asyncio.sleep(POLL_S)
            except asyncio.CancelledError:
                if not limit.expired():
                    raise
        return not self._live

    def cancel_all(self) -> None:
        """End everything that has not ended."""
        for task in [*self._live.values()]:
            task.cancel()

    async def close(self) -> None:
        """End what runs; nothing is taken in any more. The replicas are whoever's made them."""
        self._refusal = "this service is closed: make a new one"
        self.cancel_all()
        await asyncio.gather(*self._live.values(), return_exceptions=True)

    def _read(
        self, prompt: Prompt, params: SamplingParams | None, name: str
    ) -> tuple[tuple[int, ...], SamplingParams, str]:
        """Its tokens, what it asks for, and the text of the tokens that its output begins with."""
        line = self._prompts.read(prompt, name)
        tokens, asked = self._prompts.encode(line).ids, self._prompts.params(line, params)
        brought = ""
        if asked.settled_token_ids:
            with suppress(Exception):  # whatever a tokenizer raises of them: a replica refuses them
                brought = StreamDecoder(self.tokenizer, tokens).push(asked.settled_token_ids)
        return tokens, asked, brought

    def _over(self, completion: Completion, task: asyncio.Task[None]) -> None:
        del self._live[completion]
        self._moves += completion.moves
        if task.cancelled():  # before its first turn
            completion.cancelled()


def works(
    name: str, tokens: tuple[int, ...], params: SamplingParams, cache_salt: bytes = b""
) -> list[Work]:
    """The n completions of a prompt, each with the seed that it would have beside the others."""
    return [
        Work(
            name if params.n == 1 else f"{name}/{index}",
            index,
            tokens,
            replace(params, n=1, seed=(params.seed + index) % 2**63),
            cache_salt,
        )
        for index in range(params.n)
    ]


class FleetStream:
    """The increments of one prompt, on the event loop that it was submitted in."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.prompt_ids = prompt_ids
        self.completions: list[Completion] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._there: deque[Increment] = deque()
        self._listener: Listener | None = None

    def add(self, completion: Completion, task: asyncio.Task[None]) -> None:
        """One of its completions."""
        self.completions.append(completion)
        self._tasks.append(task)

    @property
    def blame(self) -> Blame | None:
        """What made a completion end with an error, if it was neither the request nor a step."""
        return next((each.blame for each in self.completions if each.blame is not None), None)

    def listen(self, listener: Listener) -> None:
        """Have what is there, and what comes, handed to this. It must not raise."""
        self._listener = listener
        if self._there:
            found: Sequence[Increment] = [*self._there]
            self._there.clear()
            listener(found)

    def cancel(self) -> None:
        """End what has not ended; its outputs come as always."""
        for task in self._tasks:
            task.cancel()

    def tell(self, increment: Increment) -> None:
        """From its completions."""
        if self._listener is None:
            self._there.append(increment)
        else:
            self._listener([increment])
