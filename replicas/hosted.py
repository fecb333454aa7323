"""A replica from within: an engine that works for a front."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from ..serving.alike import Likeness
from .fleet import About
from .watch import beating
from .work import BEAT, REFUSALS, TAKEN, Message, Work, ended, refused, settled

if TYPE_CHECKING:
    from ..serving.async_llm import AsyncLLM


async def generated(llm: AsyncLLM, told: Message) -> AsyncGenerator[Message]:
    """The messages of one work. Closed early, the work is cancelled."""
    try:
        work = Work.of(told)
        stream = await llm.submit(
            work.prompt_ids, work.params, id=work.id, cache_salt=work.cache_salt
        )
    except REFUSALS as error:
        yield refused(error)
        return
    async with stream:
        yield TAKEN
        async for increment in beating(stream):
            if increment is None:
                yield BEAT
            elif increment.output is None:
                yield settled(increment)
            else:
                yield ended(increment.output, stream.blame)


def about(llm: AsyncLLM) -> About:
    """What a front needs to know of the engine."""
    sampling = llm.engine.model.sampling_defaults
    return About(llm.engine.limits, llm.plan.digest, Likeness.of(llm.config), sampling)
