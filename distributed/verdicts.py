"""A failure is a value: where every rank has the same, the group goes on; else it ends.

An exception in an op is reported to rank 0. If every rank reports the same within a time, all go on
as one rank would. Otherwise ranks would go different ways from there on, so the group ends, and
says which rank failed where the others did not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import monotonic

from .errors import GroupEnded
from .frames import Message
from .group import SETTLE_S, STUCK_S, Group

BEHIND_S = 600.0
"""Later than this no rank comes to what rank 0 has done."""

Failure = tuple[str, str]
"""What failed, and how."""


class Verdicts:
    """Judges the failures of a group's ranks. Rank 0 decides."""

    def __init__(self, group: Group, settle_s: float = SETTLE_S) -> None:
        self._group, self._settle_s = group, settle_s
        self._changed = threading.Condition()
        self._number = 0  # of this rank's failures
        self._agreed = 0  # failures that all ranks had
        self._reported: dict[int, dict[int, Failure]] = {}  # by number, then rank
        self._since: dict[int, float] = {}
        self._objections: dict[tuple[int, str], tuple[int, float]] = {}  # of other ranks
        self._own: dict[tuple[int, str], float] = {}  # of this rank, while others may have them
        self._failing: tuple[Failure, float] | None = None  # of this rank, not settled yet
        group.on("failed", self._failed)
        group.on("go on", self._go_on)
        group.on("objected", self._objected)
        group.on_tick(self._look)
        group.on_end(self._wake)

    def failing(self, what: str, said: str) -> None:
        """An op has failed on this rank. Before that can be settled others have to end, and one may
        wait for a rank that waits for what has failed: then the group ends. By any thread.
        """
        if self._failing is None:
            self._failing = ((what, said), monotonic())

    def settle(self, what: str, said: str) -> None:
        """Come back when every rank has reported the same failure as its next.

        Raises `GroupEnded` where one has another, or none.
        """
        group = self._group
        self._failing = None
        with self._changed:
            self._number += 1
            number = self._number
        if group.leads:
            self._add(0, number, (what, said))
        else:
            group.send({"kind": "failed", "number": number, "what": what, "said": said})
        with group.meeting("settling a failure"), self._changed:
            # Rank 0 judges in time, and a rank 0 that does not live is noticed by its silence.
            self._changed.wait_for(lambda: self._agreed >= number or group.failure is not None)
        group.check()

    def object(self, uid: int, error: str) -> None:
        """A caller's listener, or what else belongs to one request, has failed on this rank."""
        if self._group.leads:
            with self._changed:
                self._own[uid, error] = monotonic()
        else:
            self._group.send({"kind": "objected", "uid": uid, "error": error})

    def _add(self, rank: int, number: int, failure: Failure) -> None:
        with self._changed:
            found = self._reported.setdefault(number, {})
            found[rank] = failure
            self._since.setdefault(number, monotonic())
            complete = len(found) == self._group.size
        if complete:
            self._judge(number, found)

    def _judge(self, number: int, found: dict[int, Failure]) -> None:
        first = found[0]
        for rank, failure in sorted(found.items()):
            if failure != first:
                self._group.end(
                    f"rank {rank} failed otherwise than rank 0: {': '.join(failure)}; on rank 0: "
                    f"{': '.join(first)}"
                )
                return
        self._group.send({"kind": "go on", "number": number})
        with self._changed:
            del self._reported[number], self._since[number]
            self._agreed = number
            self._changed.notify_all()

    def _look(self) -> None:
        """End the group for a failure that some rank had alone for too long."""
        if self._group.failure is not None:
            return
        now = monotonic()
        failing, waits = self._failing, self._group.waits_since
        if failing is not None and waits is not None and now - max(failing[1], waits) > STUCK_S:
            self._alone(self._group.rank, {self._group.rank: failing[0]})
            return
        if not self._group.leads:
            return
        with self._changed:
            late = [n for n, since in self._since.items() if now - since > self._settle_s]
            alone = self._reported[late[0]] if late else {}
            for key in self._own.keys() & set(self._objections):
                del self._objections[key]
            self._own = {key: at for key, at in self._own.items() if now - at <= BEHIND_S}
            objected = [
                (rank, *key)
                for key, (rank, since) in self._objections.items()
                if now - since > self._settle_s
            ]
        if alone:
            self._alone(min(alone), alone)
        elif objected:
            rank, uid, error = objected[0]
            self._group.end(f"request {uid} failed on rank {rank}, and not on rank 0: {error}")

    def _alone(self, rank: int, failed: Mapping[int, Failure]) -> None:
        others = ", ".join(str(each) for each in range(self._group.size) if each not in failed)
        self._group.end(
            f"rank {rank} failed where rank {others} did not: {': '.join(failed[rank])}"
        )

    def _failed(self, rank: int, message: Message) -> None:
        failure = (str(message["what"]), str(message["said"]))
        self._add(rank, int(message["number"]), failure)

    def _go_on(self, rank: int, message: Message) -> None:
        with self._changed:
            self._agreed = int(message["number"])
            self._changed.notify_all()

    def _objected(self, rank: int, message: Message) -> None:
        with self._changed:
            key = (int(message["uid"]), str(message["error"]))
            self._objections.setdefault(key, (rank, monotonic()))

    def _wake(self, failure: GroupEnded) -> None:
        with self._changed:
            self._changed.notify_all()
