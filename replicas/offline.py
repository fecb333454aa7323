"""`LLM` over many machines: prompts in, texts out, on replicas that Ray takes care of.

with Replicated("async_grammar", replicas=4) as llm:
    for output in llm.generate(["Once upon a time"], {"max_tokens": 40}):
        print(output.text)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from ..configs.errors import ConfigError
from ..configs.prompts import PromptLine
from ..configs.schema import PipelineConfig
from ..requests.complaints import shown
from ..requests.increment import Increment
from ..requests.params import RequestError, SamplingParams
from ..requests.request import RequestOutput
from ..serving.arguments import Params, chosen, each_prompt, params_for_each
from ..serving.engine import EngineError
from ..serving.prompts import Prompt, id_and_text
from ..structured.grammar import GrammarError
from .fleet import About, Fleet
from .front import ManyEngines
from .scale import Scale

AHEAD = 2
"""Completions under way for each row of all replicas: so a row that is free has one at once."""

T = TypeVar("T")


class Replicated:
    """A pipeline on several engines, for work that is all there: the outputs of `LLM.generate`.

    `pipeline`, `model` and `overrides` are those of `LLM`. It starts `replicas` engines on the
    cluster of RAY_ADDRESS, or on this machine, and ends them with `close`. An engine that is lost
    costs no prompt: another one goes on with it. Needs the extra `ray`.

    Raises `RayUnavailable`, `EngineError` for a number of replicas that is none, and what `LLM`
    raises for its arguments.
    """

    def __init__(
        self,
        pipeline: PipelineConfig | str | Path | Mapping[str, Any] | None = None,
        *,
        replicas: int,
        model: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        config = chosen(model, pipeline, overrides)
        if type(replicas) is not int or replicas < 1:
            raise EngineError(
                f"replicas must be a whole number of at least 1, not {shown(replicas)}"
            )
        from .on_ray import RayFleet

        fleet = RayFleet(config, Scale(replicas, replicas), f"stepweave-{uuid4().hex[:8]}")
        self._end = fleet.close
        try:
            self._batch = Batch(config, fleet, fleet.about(), replicas)
        except BaseException:
            fleet.close()
            raise

    def __enter__(self) -> Replicated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None
    ) -> list[RequestOutput]:
        """Generate for every prompt; outputs in the order of the prompts, as `LLM.generate`."""
        return self._batch.generate(prompts, params)

    def close(self) -> None:
        """End the engines."""
        self._end()


class Batch:
    """Prompts that are all there, on any fleet: those for which no queue has room wait for it."""

    def __init__(self, config: PipelineConfig, fleet: Fleet, about: About, replicas: int) -> None:
        self._front = ManyEngines(config, fleet, about, waits=True)
        self._under_way = AHEAD * replicas * about.limits.max_rows

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None
    ) -> list[RequestOutput]:
        """The outputs in the order of the prompts; one that cannot be served has an `error`.

        Raises `TypeError`, `ValueError` or `RequestError` for arguments that are wrong as a whole.
        """
        many = each_prompt(prompts)
        asked = params_for_each(params, len(many))
        return to_its_end(self._all(list(zip(many, asked, strict=True))))

    async def _all(
        self, work: Sequence[tuple[Prompt, SamplingParams | None]]
    ) -> list[RequestOutput]:
        places, turn = asyncio.Semaphore(self._under_way), asyncio.Lock()

        async def one(index: int, prompt: Prompt, params: SamplingParams | None) -> RequestOutput:
            needed = min(completions(prompt, params), self._under_way)
            async with turn:  # one after the other: nobody keeps a part of the places and waits
                for _ in range(needed):
                    await places.acquire()
            try:
                return await self._one(index, prompt, params)
            finally:
                for _ in range(needed):
                    places.release()

        return await asyncio.gather(*(one(index, *each) for index, each in enumerate(work)))

    async def _one(
        self, index: int, prompt: Prompt, params: SamplingParams | None
    ) -> RequestOutput:
        id, text = id_and_text(prompt, index)
        try:
            stream = await self._front.submit(prompt, params, id=id)
        except (RequestError, GrammarError, ConfigError, EngineError) as error:
            return RequestOutput(id, text, "", (), "error", error=f"{error}")
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outputs: dict[int, RequestOutput] = {}

        def heard(increments: Sequence[Increment]) -> None:
            for each in increments:
                if each.output is not None:
                    outputs[each.index] = replace(each.output, prompt=text)
            if len(outputs) == len(stream.completions) and not over.done():
                over.set_result(None)

        stream.listen(heard)
        await over
        choices = tuple(output for _, output in sorted(outputs.items()))
        return choices[0] if len(choices) == 1 else replace(choices[0], id=id, choices=choices)


def completions(prompt: Prompt, params: SamplingParams | None) -> int:
    """How many a prompt asks for, which a line may say itself; 1 where that is no number."""
    line = prompt.parameters if isinstance(prompt, PromptLine) else prompt
    own = line.get("n") if isinstance(line, Mapping) else None
    asked = (1 if params is None else params.n) if own is None else own
    return asked if isinstance(asked, int) else 1


def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What comes of `work`, on a thread of its own where a loop runs, as in a notebook. What
    interrupts the caller ends it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    begun: Future[Callable[[], object]] = Future()

    async def on_thread() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        begun.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    with ThreadPoolExecutor(1, "stepweave-batch") as thread:
        done = thread.submit(asyncio.run, on_thread())
        try:
            return done.result()
        except BaseException:
            if not done.done():
                with suppress(RuntimeError):  # it has come to its end just now
                    begun.result()()
            raise
