"""The front door for event loops: prompts in, increments out as they are settled.

async with AsyncLLM("path/to/model") as llm:
    async for increment in llm.generate("Once upon a time"):
        print(increment.text, end="")
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from ..configs.schema import PipelineConfig
from ..graph.plan import Plan
from ..requests.increment import Increment
from ..requests.request import SamplingParams
from .arguments import chosen, conversations, params_for_each
from .intake import Intake
from .loading import load_engine
from .prompts import Prompt, id_and_text
from .service import Service
from .summary import summary
from .ticket import Blame, Ticket
from .warm_up import warm_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POLL_S = 0.05
"""How often a drain looks whether everything has ended."""

Listener = Callable[[Sequence[Increment]], None]
"""Takes increments of one prompt on the event loop: must neither wait nor raise."""


class AsyncLLM:
    """A loaded pipeline that serves an event loop; the arguments are those of `LLM`.

    One run of the plan goes on from `start`, or the first request, until `close`. Each stream is
    read in the loop that it was submitted in. With `tp` or `pp`, rank 0 takes requests in, and any
    other rank calls `follow`. Raises as `LLM`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        pipeline: PipelineConfig | str | Path | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        tp: int | None = None,
        pp: int | None = None,
    ) -> None:
        pipeline = chosen(model, pipeline, overrides, tp, pp)
        self.config = pipeline
        self.engine = load_engine(pipeline)
        intake = Intake(pipeline, self.engine)
        self.service = Service(self.engine, intake)
        self.tokenizer = intake.tokenizer
        self._ids = count()
        self._started = False
        self._staying = ExitStack()
        self._mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = (
            WeakKeyDictionary()
        )

    @property
    def leads(self) -> bool:
        """Whether requests are taken in here: on one rank alone, or on rank 0 of a group."""
        return self.service.leads

    def follow(self) -> None:
        """On any other rank: serve what rank 0 serves, until that is closed. It waits: call it
        beside the loop, or without one.

        Raises `GroupEnded` where the group ends otherwise, and `EngineError` on rank 0.
        """
        self.service.follow()

    @property
    def plan(self) -> Plan:
        """The plan that the engine runs, or begins with where it has others."""
        return self.engine.plan

    @property
    def plans(self) -> Mapping[str, Plan]:
        """By name all plans that the engine may run; `llm.engine.at` says which of them is on."""
        return self.engine.plans

    async def __aenter__(self) -> AsyncLLM:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, that of transformers."""
        return self.tokenizer

    def warm_up(self, on_progress: Callable[[int, int, str], None] | None = None) -> None:
        """Capture all graphs that steady decoding needs; do nothing if there are none.

        For before `start`: it waits. `on_progress(done, of, what)` tells how far it is.
        """
        warm_up(self, on_progress)

    def start(self) -> None:
        """Begin the run, so that the first request need not."""
        if not self._started:
            self._started = True
            self._staying.enter_context(self.service.stay())

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        cache_salt: bytes = b"",
    ) -> AsyncStream:
        """Hand in one prompt; it is tokenized beside the loop.

        `cache_salt`: of whom it shares cached prefixes with.

        Raises:
            RequestError: what this engine cannot serve, or, with code SW-QUEUE-FULL, not now.
            GrammarError: a grammar that is wrong to begin with.
            ConfigError: a prompt whose keys are wrong.
            EngineError: after `close`, or while it drains.
        """
        self.start()
        [each] = params_for_each(params, 1)
        stream = AsyncStream(self.service)
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.setdefault(loop, _Mailbox(loop))
        number = next(self._ids)
        handing = _Handing(
            self.service,
            partial(
                self.service.submit,
                prompt,
                each,
                partial(mailbox.put, stream),
                id=id_and_text(prompt, number)[0] if id is None else id,
                cache_salt=cache_salt,
            ),
        )
        try:
            stream.ticket = await asyncio.to_thread(handing.submit)
        except asyncio.CancelledError:
            handing.give_up()
            raise
        return stream

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
    ) -> AsyncIterator[Increment]:
        """Increments of one prompt as they are settled, of its n completions as they come.

        The last of each completion has its output, also where it ends with an error. Leaving the
        loop, or cancelling the task, cancels the request. Raises as `submit`.
        """
        async with await self.submit(prompt, params, id=id) as stream:
            async for increment in stream:
                yield increment

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
    ) -> AsyncIterator[Increment]:
        """`generate` for one conversation, which goes through the model's chat template."""
        [prompt] = conversations(messages)
        return self.generate(prompt, params, id=id)

    async def drain(self, seconds: float | None = None) -> bool:
        """Take nothing in any more, and wait until all has ended; whether it did in time."""
        self.service.refuse("this engine is draining: it takes no more requests")
        async with asyncio.timeout(seconds) as limit:
            try:
                while self.service.unended:
                    await asyncio.sleep(POLL_S)
            except asyncio.CancelledError:
                if not limit.expired():
                    raise
        return not self.service.unended

    async def close(self) -> None:
        """End what runs, and the run; nothing is taken in any more."""
        self._started = True  # or what is handed in later would begin a run, to be refused in it
        self._staying.close()
        await asyncio.to_thread(self.service.close)

    def summary(self) -> dict[str, Any]:
        """Totals over all requests, and the plan they ran on."""
        return summary(self.engine, self.config)


class AsyncStream:
    """The increments of one prompt, for one reader; closed or left early, it is cancelled."""

    ticket: Ticket

    def __init__(self, service: Service) -> None:
        self._service = service
        self._there: deque[Increment] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._listener: Listener | None = None
        self._left: int | None = None  # outputs that have not been read; None: none was yet

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Increment:
        if self.ended:
            raise StopAsyncIteration
        while not self._there:
            await self._wait()
        return self._read()

    def listen(self, listener: Listener) -> None:
        """Have what is there, and what comes, handed to this in place of iterating.

        It is called on the loop, with all that is there at the same time. So a step costs the
        loop no turn of a task. It must not raise.
        """
        self._listener = listener
        self.tell()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self.ticket.prompt_ids

    @property
    def blame(self) -> Blame | None:
        """What made it end with an error, if it was neither the request itself nor a step."""
        return self.ticket.blame

    @property
    def ended(self) -> bool:
        """Whether every completion's output has been read."""
        return self._left == 0

    def cancel(self) -> None:
        """End what has not ended: its row and blocks are free at the next step."""
        if not self.ticket.ended:
            self._service.cancel(self.ticket)

    def take(self, increment: Increment) -> None:
        """On the loop's thread, from its mailbox, which tells the reader when it has no more."""
        self._there.append(increment)

    def tell(self) -> None:
        """Let the reader have what is there."""
        if self._listener is not None:
            if self._there:
                self._listener([self._read() for _ in range(len(self._there))])
        elif self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _wait(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _read(self) -> Increment:
        increment = self._there.popleft()
        if increment.output is not None:
            self._left = (self.ticket.n if self._left is None else self._left) - 1
        return increment


class _Mailbox:
    """Increments on their way to one loop, which is woken once for all that are there.

    The driver's part is bounded: it puts into a queue, and writes to the loop's socket when the
    loop has taken out what was there before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # whoever keeps mailboxes keeps them as long as there is the loop
        self._there: SimpleQueue[tuple[AsyncStream, Increment]] = SimpleQueue()
        self._woken = False

    def put(self, stream: AsyncStream, increment: Increment) -> None:
        """From any thread."""
        self._there.put((stream, increment))
        if not self._woken:
            self._woken = True
            loop = self._loop()
            if loop is not None:
                with suppress(RuntimeError):  # the loop is closed: nobody will read
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # first: what is put from now on wakes the loop again
        fed: dict[AsyncStream, None] = {}
        while not self._there.empty():
            stream, increment = self._there.get_nowait()
            stream.take(increment)
            fed[stream] = None
        for stream in fed:
            stream.tell()


class _Handing:
    """A prompt that a thread hands in, while whoever waits for that may leave.

    A loop that ends leaves without waiting for the thread, which goes on: so that is told here.
    """

    def __init__(self, service: Service, submit: Callable[[], Ticket]) -> None:
        self._service = service
        self._submit = submit
        self._lock = Lock()
        self._left = False
        self._ticket: Ticket | None = None

    def submit(self) -> Ticket:
        """On the thread. Raises what `submit` does."""
        ticket = self._submit()
        with self._lock:
            self._ticket, left = ticket, self._left
        if left:
            self._service.cancel(ticket)
        return ticket

    def give_up(self) -> None:
        """Nobody waits any more: the prompt is cancelled, now or as soon as it is handed in."""
        with self._lock:
            self._left, ticket = True, self._ticket
        if ticket is not None:
            self._service.cancel(ticket)
