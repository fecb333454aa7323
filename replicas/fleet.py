"""Replicas, and who chooses among them: what a front hands its work to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ..requests.limits import Limits
from ..serving.alike import Likeness
from .errors import ReplicaLost
from .routing import Router, blocks_of
from .watch import watched
from .work import Message, Work


@dataclass(frozen=True)
class About:
    """What all replicas of a fleet have in common.

    `digest` is that of their plan, `pipeline` what theirs is compared by, and `sampling` what the
    model's authors advise for requests that do not say how tokens are drawn.
    """

    limits: Limits
    digest: str
    pipeline: Likeness
    sampling: Mapping[str, Any]

    def to_json(self) -> Message:
        """As it travels."""
        return {
            "limits": asdict(self.limits),
            "digest": self.digest,
            "pipeline": self.pipeline.to_json(),
            "sampling": dict(self.sampling),
        }

    @classmethod
    def of(cls, told: Message) -> About:
        """From what travelled."""
        pipeline = Likeness.read(told["pipeline"])
        return cls(Limits(**told["limits"]), told["digest"], pipeline, told["sampling"])


class Fleet(Protocol):
    """Some replicas. Each work goes to one of them, whichever it is."""

    @property
    def live(self) -> int:
        """How many replicas take work."""
        ...

    def generate(self, work: Work) -> AsyncGenerator[Message]:
        """The messages of a replica that works on it; closed early, the work is cancelled there.

        Where no replica is live it waits for one. Raises `ReplicaLost` when the replica is, when it
        says nothing for too long (`watched`), and when it serves no more.
        """
        ...


class Replica(Protocol):
    """One engine, wherever it runs."""

    @property
    def name(self) -> str:
        """Its own: one that takes its place later has another."""
        ...

    def generate(self, work: Message) -> AsyncGenerator[Message]:
        """Its messages and signs of life. Raises `ReplicaLost` when it is gone."""
        ...


class Routed:
    """A fleet of replicas that are known one by one, each request sent by `Router`."""

    def __init__(self, router: Router | None = None) -> None:
        self._router = router or Router()
        self._replicas: dict[str, Replica] = {}
        self._some = asyncio.Event()

    @property
    def live(self) -> int:
        """How many replicas take work."""
        return len(self._replicas)

    def add(self, replica: Replica) -> None:
        """From now on it takes work."""
        self._replicas[replica.name] = replica
        self._changed()

    def drop(self, name: str) -> None:
        """It takes no more; what it works on goes on."""
        self._replicas.pop(name, None)
        self._changed()

    async def generate(self, work: Work) -> AsyncGenerator[Message]:
        """The messages of the replica that the router chooses."""
        while not self._replicas:  # one may have come, and be gone again
            await self._some.wait()
        blocks = blocks_of(work.prompt_ids, work.cache_salt)
        name = self._router.choose(blocks, len(work.prompt_ids))[0]
        self._router.begun(name, blocks)
        try:
            async with (
                aclosing(self._replicas[name].generate(work.to_json())) as said,
                aclosing(watched(said)) as messages,
            ):
                async for message in messages:
                    yield message
        except ReplicaLost:
            self.drop(name)
            raise
        finally:
            self._router.ended(name)

    def _changed(self) -> None:
        self._router.keep([*self._replicas])
        (self._some.set if self._replicas else self._some.clear)()
