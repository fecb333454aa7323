"""Replicas for tests: engines in this process, whose connection can be cut at any message."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from stepweave import AsyncLLM
from stepweave.replicas.errors import ReplicaLost
from stepweave.replicas.hosted import generated
from stepweave.replicas.work import Message

Cut = Callable[[Message], bool]
"""Whether the replica is lost before this message."""


class Local:
    """A replica that is an engine of this process; everything travels as JSON text.

    Lost, it gives no more messages, and none of those that were under way.
    """

    def __init__(self, name: str, llm: AsyncLLM, cut: Cut = lambda _: False) -> None:
        self.name = name
        self.taken = 0
        self._llm = llm
        self._cut = cut
        self.lost = False

    async def generate(self, work: Message) -> AsyncGenerator[Message]:
        self.taken += 1
        async with aclosing(generated(self._llm, json.loads(json.dumps(work)))) as messages:
            async for message in messages:
                if self.lost or self._cut(message):
                    self.lost = True
                    raise ReplicaLost(f"{self.name} was killed")
                yield json.loads(json.dumps(message))


def after(tokens: int) -> Cut:
    """Lost when it has said so many tokens, of all its work together."""
    said = 0

    def cut(message: Message) -> bool:
        nonlocal said
        if said >= tokens:
            return True
        said += len(message.get("token_ids", ()))
        return False

    return cut
