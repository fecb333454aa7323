"""A call for completions while the engine serves it: its prompts, and what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from ..configs.errors import ConfigError
from ..graph.errors import StepweaveError
from ..requests.increment import Increment
from ..requests.request import RequestError, RequestOutput, SamplingParams
from ..serving.engine import EngineError
from ..serving.prompts import Prompt
from ..structured.grammar import GrammarError
from .errors import ApiError, Refused, invalid_grammar, param_of
from .observers import Exchange, Observer, Served, tell
from .protocol.sampling import PARAMETERS
from .settings import Limits
from .usage import ReasoningTokens, Usage

if TYPE_CHECKING:
    from .front import Front, Stream

Batch = Sequence[tuple[int, Increment]]
"""Increments that are there at the same time, each with its choice."""

QUEUE_FULL = "SW-QUEUE-FULL"
"""The code of an engine that takes nothing in now, and may later."""


async def submitted(
    front: Front,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    exchange: Exchange,
    limits: Limits,
    refused: Refused = invalid_grammar,
) -> list[Stream]:
    """All prompts of a call, taken in; or none of them, and `ApiError` says why: of a grammar that
    cannot be followed what `refused` says.

    Each API key has a part of the prefix cache of its own: nobody can tell from an answer what
    others have asked.
    """
    if (many := len(prompts) * params.n) > limits.completions:
        said = f"{len(prompts)} prompts with n {params.n} are {many} completions"
        raise ApiError(400, f"{said}, more than {limits.completions}", param="n")
    streams: list[Stream] = []
    try:
        for index, prompt in enumerate(prompts):
            name = exchange.id if len(prompts) == 1 else f"{exchange.id}-{index}"
            stream = await front.submit(prompt, params, id=name, cache_salt=exchange.key)
            streams.append(stream)
    except BaseException as error:
        alone = front.running + front.queued <= len(streams) * params.n
        for stream in streams:
            stream.cancel()
        most = front.limits.max_rows + front.limits.max_queue
        if getattr(error, "code", None) == QUEUE_FULL and alone and len(prompts) > most:
            said = f"the prompt is {len(prompts)} prompts, but {most} may run and wait at once"
            raise ApiError(400, f"{said}: ask for them in several calls", param="prompt") from error
        if isinstance(error, StepweaveError | GrammarError):
            found = refusal(error, limits, refused)
            if len(prompts) > 1 and found.param == "prompt":
                found.message = f"prompt {len(streams) + 1} of {len(prompts)}: {found.message}"
            raise found from error
        raise
    return streams


def refusal(error: Exception, limits: Limits, refused: Refused) -> ApiError:
    """What a client is told of a prompt that the engine did not take in."""
    message, code = f"{error}", getattr(error, "code", None)
    if code == QUEUE_FULL:
        wait = {"retry-after": str(limits.retry_after_s)}
        return ApiError(429, message, code="queue_full", headers=wait)
    if isinstance(error, EngineError):
        return unavailable(message)
    if isinstance(error, RequestError | ConfigError | GrammarError):
        if isinstance(error, GrammarError):
            return refused(message)
        if code == "SW-LENGTH":
            return ApiError(400, message, param="prompt", code="context_length_exceeded")
        return ApiError(400, message, param=param_of(message, ("prompt", *PARAMETERS)))
    return ApiError(500, message)


def unavailable(message: str) -> ApiError:
    """This service takes nothing in; another may, or this one later."""
    return ApiError(503, message, code="unavailable", headers={"retry-after": "5"})


class Call:
    """The increments of several prompts, told by choice: prompt 1 has the choices from n on."""

    def __init__(
        self,
        streams: Sequence[Stream],
        served: Served,
        usage: Usage,
        observers: Sequence[Observer],
        reasoning: ReasoningTokens | None = None,
        refused: Refused = invalid_grammar,
    ) -> None:
        """`refused`: what is told of a grammar that turns out to be none."""
        self.served = served
        self._refused = refused
        self.usage = usage
        self.outputs: dict[int, RequestOutput] = {}
        self._streams = streams
        self._n = served.choices // len(streams)
        self._observers = observers
        self._reasoning = reasoning

    @property
    def prompt_ids(self) -> list[Sequence[int]]:
        """The tokens of each prompt."""
        return [each.prompt_ids for each in self._streams]

    def cancel(self) -> None:
        """End what has not ended; its outputs come as always."""
        for stream in self._streams:
            stream.cancel()

    async def told(self, heard: Callable[[Batch], None]) -> None:
        """Have `heard` called with what is there, and what comes, until each choice has its output.

        Raises `ApiError` for a choice that ended with an error, and what `heard` raises. If it is
        cancelled, the call is.
        """
        tell(self._observers, "begun", self.served)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            for which, stream in enumerate(self._streams):
                stream.listen(partial(self._hear, which * self._n, heard, over))
            await over
        finally:
            if len(self.outputs) < self.served.choices:
                self.cancel()

    def _hear(
        self,
        first: int,
        heard: Callable[[Batch], None],
        over: asyncio.Future[None],
        increments: Sequence[Increment],
    ) -> None:
        """Of the stream whose choices begin at `first`."""
        if over.done():
            return
        batch = [(first + each.index, each) for each in increments]
        now = perf_counter()
        try:
            for choice, increment in batch:
                self._take(choice, increment, now)
            heard(batch)
        except Exception as error:
            over.set_exception(error)
        else:
            if len(self.outputs) == self.served.choices:
                over.set_result(None)

    def _take(self, choice: int, increment: Increment, now: float) -> None:
        self.usage.completion += len(increment.token_ids)
        if self._reasoning is not None:
            said = self._reasoning.among(choice, increment.token_ids)
            self.usage.reasoning = (self.usage.reasoning or 0) + said
        if self._observers:
            tell(self._observers, "settled", self.served, choice, increment, now)
        if increment.token_ids:
            self.served.settled_s[choice] = now
        if (output := increment.output) is None:
            return
        self.outputs[choice] = output
        self.usage.ended(output, first=choice % self._n == 0)
        if output.finish_reason == "error":
            raise self._failure(choice, output)
        if output.finish_reason == "cancelled" and not self.usage.completion:
            # By the service: a client that cancels has left. Nothing is lost with another service.
            raise unavailable("the service has shut down before the request began")

    def _failure(self, choice: int, output: RequestOutput) -> ApiError:
        """A grammar that could not be compiled is the client's; all else is the service's."""
        blame = self._streams[choice // self._n].blame
        message = output.error or "the request has failed"
        if blame == "grammar":
            return self._refused(message)
        return ApiError(500, message, code="engine_failed" if blame == "engine" else None)
