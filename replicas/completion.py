"""One completion, on as many replicas as it takes: whoever listens hears every token once.

What was settled is kept here. So when a replica is lost, another one goes on after it, with the
same tokens and the same text (`settled_token_ids`) if the acceptance rule is exact, and the
listener notices a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import perf_counter

from ..graph.errors import shortly
from ..requests.increment import Increment
from ..requests.moments import Moments
from ..requests.params import RequestError
from ..requests.request import FinishReason, RequestOutput, TokenLogprob
from ..serving.engine import EngineError
from ..serving.ticket import Blame
from ..structured.grammar import GrammarError
from .errors import ReplicaLost
from .fleet import Fleet
from .work import Message, Work, logprobs_of, output_of, refusal

FUTILE_MOVES = 6
"""How often in a row a completion moves without getting anywhere, before it ends with an error."""

PATIENCE_S = 120.0
"""How long it waits for a replica that takes it in: one that is started loads its model first.
Those that are there may all have failed, and refuse it until then, however often it asks.
"""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

Tell = Callable[[Increment], None]
"""Takes an increment on the event loop; must not raise."""


@dataclass(eq=False)
class Completion:
    """Runs `work` on `fleet`, and tells what comes of it. `taken` is done when a replica has it.

    `taken` raises what the replica raised of a work that it does not take in. `waits`: a full queue
    is waited for from the beginning, not only by a work that has begun. `brought`: the text of the
    tokens that the work came with, with which its output begins.
    """

    fleet: Fleet
    work: Work
    tell: Tell
    waits: bool = False
    brought: str = ""
    patience_s: float = PATIENCE_S
    taken: asyncio.Future[None] = field(default_factory=asyncio.Future)
    moves: int = 0  # from a replica that was lost to another
    blame: Blame | None = None
    output: RequestOutput | None = None
    _tokens: list[int] = field(default_factory=list)
    _logprobs: list[TokenLogprob] = field(default_factory=list)
    _text: str = ""
    _held: str = ""  # text of tokens told before: of a replica that ends it, and may yet be lost
    _moments: Moments = field(default_factory=Moments)
    _had: bool = False  # the replica that is asked has taken it in

    async def run(self) -> None:
        """Until the output is told; cancelled, that of what was settled is."""
        futile = in_vain = 0  # moves from replicas that had it; attempts of any kind
        since = perf_counter()
        try:
            while True:
                before = len(self._tokens)
                try:
                    await self._work()
                    return
                except ReplicaLost as error:
                    lost: Exception = error
                except (RequestError, GrammarError) as error:
                    if not self._may_wait(error):
                        self._refused(error)
                        return
                    futile, since, lost = 0, perf_counter(), error  # no replica has failed
                if len(self._tokens) > before:
                    futile, in_vain, since = 0, 0, perf_counter()
                else:
                    futile, in_vain = futile + self._had, in_vain + 1
                refused = in_vain > FUTILE_MOVES and perf_counter() - since >= self.patience_s
                if futile > FUTILE_MOVES or refused:
                    self._refused(EngineError(f"no replica gets on with it: {shortly(lost)}"))
                    return
                self.moves += isinstance(lost, ReplicaLost)
                pause_s = _FIRST_PAUSE_S * (2 ** min(in_vain, 16) - 1)
                await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))
        except Exception as error:  # a fault of ours: whoever listens would wait for ever
            self._refused(EngineError(shortly(error)))
        except asyncio.CancelledError:
            self.cancelled()

    def cancelled(self) -> None:
        """It ends here: whoever waits for it hears so."""
        if not self.taken.done():
            self.taken.cancel()
        self._end("cancelled")

    async def _work(self) -> None:
        """Have one replica work on what is left. Raises `ReplicaLost`, or what it refuses it by."""
        self._held, self._had = "", False  # another one writes it again
        async with aclosing(self.fleet.generate(self.work.after(self._tokens))) as messages:
            first = await self._first(messages)
            if "refused" in first:
                raise refusal(first)
            self._had = True
            if not self.taken.done():
                self.taken.set_result(None)
            async for message in messages:
                if "output" not in message:
                    self._settle(message)
                    continue
                self._take(output_of(message), message["blame"])
                return
        raise ReplicaLost("its replica ended before it did")

    async def _first(self, messages: AsyncGenerator[Message]) -> Message:
        try:
            async with asyncio.timeout(self.patience_s):
                return await anext(messages)
        except TimeoutError:
            raise ReplicaLost(f"no replica took it in within {self.patience_s:g} s") from None
        except StopAsyncIteration:
            raise ReplicaLost("its replica said nothing") from None

    def _may_wait(self, error: Exception) -> bool:
        """Whether a full queue is no reason to end: one that has begun waits for its turn."""
        begun = self.waits or self.taken.done()
        return begun and getattr(error, "code", None) == "SW-QUEUE-FULL"

    def _settle(self, message: Message) -> None:
        tokens, logprobs = tuple(message["token_ids"]), logprobs_of(message)
        if not tokens:
            self._held += message["text"]
            return
        if self._moments.first_token_s is None:
            self._moments.first_token_s = perf_counter()
        self._tokens += tokens
        self._logprobs += logprobs or ()
        self._text += message["text"]
        self.tell(Increment(self.work.id, self.work.index, message["text"], tokens, logprobs))

    def _take(self, output: RequestOutput, blame: Blame | None) -> None:
        """Its end. What replicas before the last one knew is added."""
        self.blame = blame
        if self._held:
            self._text += self._held
            self.tell(Increment(self.work.id, self.work.index, self._held))
        if self.moves:
            self._moments.ended_s = perf_counter()
            output = replace(
                output,
                logprobs=None if output.logprobs is None else tuple(self._logprobs),
                timings=self._moments.durations(len(output.token_ids)),
            )
        self._tell_end(output)

    def _refused(self, error: Exception) -> None:
        """It is not served: to whoever waits for it to be taken in, or as an output."""
        if not self.taken.done():
            self.taken.set_exception(error)
            return
        self.blame = "engine"
        self._end("error", f"{error}")

    def _end(self, reason: FinishReason, error: str | None = None) -> None:
        if self.output is not None:
            return
        self._moments.ended_s = perf_counter()
        asked = self.work.params.logprobs is not None
        self._tell_end(
            RequestOutput(
                id=self.work.id,
                prompt="",
                text=self.brought + self._text,
                token_ids=(*self.work.params.settled_token_ids, *self._tokens),
                finish_reason=reason,
                error=error,
                logprobs=tuple(self._logprobs) if asked else None,
                timings=self._moments.durations(len(self._tokens)),
            )
        )

    def _tell_end(self, output: RequestOutput) -> None:
        self.output = output
        self.tell(Increment(self.work.id, self.work.index, output=output))
