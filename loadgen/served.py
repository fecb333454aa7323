"""One load on an endpoint, from the first request to the figures."""

from __future__ import annotations

from .client import Target, connected
from .load import Load, Result
from .probing import word_cost
from .session import Session
from .speculation import Counts
from .words import WordCost

_UNCOUNTED = (
    "the server does not count tokens: input tokens are unknown, a word of a prompt is taken for "
    "a token, and a chunk for an output token"
)


async def serve_bench(session: Session, target: Target, model: str | None, load: Load) -> Result:
    """Find the model, learn how the server counts, warm up, and run the load.

    Raises `ConfigError` where the endpoint does not answer a first request.
    """
    async with connected(target, session.clock) as client:
        await client.choose_model(model)
        counted = await word_cost(client.first_answer)
        cost = counted or WordCost()
        await session.warm_up(client.answer, load, cost)
        before = Counts.read(await client.metrics())
        ran = await session.run(client.answer, load, cost)
        after = Counts.read(await client.metrics())
        about = {
            "backend": "openai",
            "base_url": target.root,
            "endpoint": target.endpoint.path,
            "model_id": client.model,
            "usage": sorted(client.usage),
        }
    drafts = after.since(before) if after and before else None
    return Result(load, ran, about, drafts, () if counted else (_UNCOUNTED,))
