"""`LLM` over many machines: prompts in, texts out, on replicas that Ray takes care of.

with Replicated("async_grammar", replicas=4) as llm:
    for output in llm.generate(["Once upon a time"], {"max_tokens": 40}):
        print(output.text)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..configs.errors import ConfigError
from ..configs.schema import PipelineConfig
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
"""Prompts under way for each row of all replicas: so a row that is free has a prompt at once."""


class Replicated:
    """A pipeline on several engines, for work that is all there: the outputs of `LLM.generate`.

    `pipeline`, `model` and `overrides` are those of `LLM`. It starts `replicas` engines on the
    cluster of RAY_ADDRESS, or on this machine, and ends them with `close`. An engine that is lost
    costs no prompt: another one goes on with it. Needs the extra `ray`.

    Raises `RayUnavailable`, and what `LLM` raises for its arguments.
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
        from .on_ray import RayFleet

        fleet = RayFleet(config, Scale(replicas, replicas), f"stepweave-{uuid4().hex[:8]}")
        self._end = fleet.close
        self._batch = Batch(config, fleet, fleet.about(), replicas)

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
    """Prompts that are all there, on any fleet."""

    def __init__(self, config: PipelineConfig, fleet: Fleet, about: About, replicas: int) -> None:
        self._front = ManyEngines(config, fleet, about)
        self._under_way = AHEAD * replicas * about.limits.max_rows

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None
    ) -> list[RequestOutput]:
        """The outputs in the order of the prompts; one that cannot be served has an `error`.

        Raises `TypeError`, `ValueError` or `RequestError` for arguments that are wrong as a whole.
        """
        many = each_prompt(prompts)
        asked = params_for_each(params, len(many))
        return asyncio.run(self._all(list(zip(many, asked, strict=True))))

    async def _all(self, work: Sequence[tuple[Prompt, SamplingParams | None]]) -> Any:
        turn = asyncio.Semaphore(self._under_way)

        async def one(index: int, prompt: Prompt, params: SamplingParams | None) -> RequestOutput:
            async with turn:
                return await self._one(index, prompt, params)

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
