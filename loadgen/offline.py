"""The same load without HTTP: the engine in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..configs.errors import ConfigError, Mark
from ..graph.errors import StepweaveError
from .ask import Ask
from .choices import Endpoint
from .load import Load, Result
from .outcome import Outcome
from .probing import word_cost
from .reading import Reading
from .runner import Clock
from .session import Session
from .speculation import Counts
from .words import WordCost

if TYPE_CHECKING:
    from ..serving.async_llm import AsyncLLM


async def offline_bench(
    session: Session,
    llm: AsyncLLM,
    load: Load,
    endpoint: Endpoint,
    parameters: Mapping[str, Any],
    name: str,
) -> Result:
    """Warm up, and run the load. `parameters` are those of requests that do not say others.

    With `chat`, prompts go through the chat template. `name` is that of the pipeline. Raises
    `ConfigError` where a first request fails.
    """
    source = EngineSource(llm, endpoint, parameters, session.clock)
    cost = await word_cost(source.first_answer) or WordCost()
    await session.warm_up(source, load, cost)
    before = _counts(llm)
    ran = await session.run(source, load, cost)
    about = {
        "backend": "stepweave",
        "pipeline": name,
        "endpoint": endpoint.value,
        "model_id": llm.config.model.name,
    }
    return Result(load, ran, about, _counts(llm).since(before))


@dataclass(frozen=True)
class EngineSource:
    """Answers asks by an engine; times are those at which the event loop gets the tokens."""

    llm: AsyncLLM
    endpoint: Endpoint
    parameters: Mapping[str, Any]
    clock: Clock

    async def __call__(self, ask: Ask, reading: Reading) -> None:
        try:
            stream = await self.llm.submit(self._line(ask))
        except StepweaveError as error:
            reading.fail(f"{error}", self.clock())
            return
        async with stream:
            async for increment in stream:
                at_s = self.clock()
                if increment.token_ids:
                    reading.tokens(len(increment.token_ids), at_s)
                if increment.output is not None:
                    output = increment.output
                    if output.error is not None:
                        reading.fail(output.error, at_s)
                    reading.end(output.finish_reason, len(stream.prompt_ids), output.cached_tokens)

    async def first_answer(self, ask: Ask) -> Outcome:
        """Raises `ConfigError` if it fails."""
        now_s = self.clock()
        reading = Reading(ask.name, now_s, now_s)
        await self(ask, reading)
        outcome = reading.outcome()
        if outcome.error is not None:
            model = self.llm.config.model.name
            raise ConfigError.at(Mark(model), f"the first request failed: {outcome.error}")
        return outcome

    def _line(self, ask: Ask) -> dict[str, Any]:
        """As a line of a prompts file."""
        found = dict(self.parameters)
        if self.endpoint is Endpoint.CHAT:
            found["messages"] = [dict(each) for each in ask.messages]
        else:
            found["prompt" if isinstance(ask.prompt, str) else "prompt_token_ids"] = ask.prompt
        if ask.max_tokens is not None:
            found["max_tokens"] = ask.max_tokens
        if ask.schema is not None:
            found["structured_outputs"] = {"json": ask.schema[1]}
        return found | dict(ask.parameters)


def _counts(llm: AsyncLLM) -> Counts:
    """What the engine has drafted and accepted so far."""
    totals = llm.engine.totals
    return Counts(totals.windows, totals.drafted, totals.accepted, tuple(totals.accepted_at))
