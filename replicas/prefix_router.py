"""Our routing as a router of Ray Serve: it chooses among the replicas that Ray knows.

Ray makes one for each handle, in the handle's process, and calls it on one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from .routing import Router, blocks_of

ATTEMPT = "attempt"
"""By which a fleet names the work that it has sent, once for each time that it does."""


class PrefixRouter(RequestRouter):
    """Sends each work to the replica that `Router` chooses, where that has room."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Ray calls this once, with the arguments of the deployment's configuration."""
        # Ray copies this class with all globals of this file: a copy of a list would be nobody's.
        from .live import ROUTERS

        self._router = Router()
        self._sent: dict[str, tuple[PendingRequest, str]] = {}  # by the id of Ray's request
        self._most: int = kwargs["most"]  # works that a replica takes
        ROUTERS[kwargs["app"]] = self

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Ray tells which replicas there are."""
        super().update_replicas(replicas)
        self._router.keep([each.unique_id for each in self.curr_replicas])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The candidates, each a rank of its own, the best first.

        The request counts as sent from here on, so that those which are routed beside it see it.
        """
        blocks, prompt = _prompt(pending_request)
        found = {each.replica_id.unique_id: each for each in candidate_replicas}
        order = [found[name] for name in self._router.choose(blocks, prompt) if name in found]
        if pending_request is not None and order:
            self._forget_those_given_up()
            self._count(pending_request, order[0].replica_id.unique_id, blocks)
        return [[each] for each in order]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        """Ray has sent it, perhaps to another than the first."""
        self._count(pending_request, replica_id.unique_id, _prompt(pending_request)[0])

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It is over there, however."""
        sent = self._sent.get(internal_request_id)
        if sent is not None and sent[1] == replica_id.unique_id:
            self._uncount(internal_request_id)

    # -- for the fleet, on its thread ------------------------------------------------------

    @property
    def live(self) -> int:
        """How many replicas take work, as far as is known."""
        return max(len(self.curr_replicas) - len(self._router.doubted), 0)

    @property
    def has_room(self) -> bool:
        """Whether one of them has room for all that was sent to it."""
        return self._router.has_room(self._most)

    def lost(self, attempt: str) -> None:
        """The replica that has this work does not answer, or serves no more."""
        if (name := self._of(attempt)) is not None:
            self._router.doubt(name)

    def heard(self, attempt: str) -> None:
        """It has answered."""
        if (name := self._of(attempt)) is not None:
            self._router.trust(name)

    def _of(self, attempt: str) -> str | None:
        """Where a work was sent."""
        return next(
            (name for work, name in [*self._sent.values()] if _attempt(work) == attempt), None
        )

    def _count(self, pending: PendingRequest, name: str, blocks: Sequence[int]) -> None:
        key = pending.metadata.internal_request_id
        if key in self._sent and self._sent[key][1] == name:
            return
        self._uncount(key)
        self._sent[key] = (pending, name)
        self._router.begun(name, blocks)

    def _uncount(self, key: str) -> None:
        if (sent := self._sent.pop(key, None)) is not None:
            self._router.ended(sent[1])

    def _forget_those_given_up(self) -> None:
        """Whoever was cancelled before it was sent is never said to be over."""
        for key, (pending, _) in [*self._sent.items()]:
            if pending.future.cancelled():
                self._uncount(key)


def _attempt(pending: PendingRequest) -> str | None:
    work: Any = pending.args[0] if pending.args else None
    return work.get(ATTEMPT) if isinstance(work, dict) else None


def _prompt(pending: PendingRequest | None) -> tuple[Sequence[int], int]:
    """The blocks of a request's prompt, and how many tokens it has; none for what is no work."""
    work: Any = pending.args[0] if pending is not None and pending.args else None
    if not isinstance(work, dict):
        return (), 0
    return (
        blocks_of(work["prompt_ids"], bytes.fromhex(work["cache_salt"])),
        len(work["prompt_ids"]),
    )
