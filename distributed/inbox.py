"""The inbox of a rank: on rank 0 it writes what it takes in to the log, elsewhere it reads that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..requests.inbox import Inbox, Taken
from ..requests.request import Request
from .log import Log
from .specs import spec_of
from .verdicts import Verdicts

MOST_BYTES = 8 << 20
"""Of the requests of one entry. A batch that is handed in at once may be many times as long as what
may be sent at once.
"""

Spec = Mapping[str, Any]
"""What the log says of a request."""


def _parts(requests: Sequence[Request]) -> list[list[Spec]]:
    """These in their order, in parts that can be sent; one at least, which may have none."""
    parts: list[list[Spec]] = [[]]
    room = MOST_BYTES
    for request in requests:
        spec = spec_of(request)
        size = len(json.dumps(spec))
        if size > room and parts[-1]:
            parts.append([])
            room = MOST_BYTES
        parts[-1].append(spec)
        room -= size
    return parts


class LoggedInbox(Inbox):
    """That of rank 0: what it takes in is what every rank takes in."""

    def __init__(self, max_queue: int, log: Log, verdicts: Verdicts) -> None:
        super().__init__(max_queue)
        self._log, self._verdicts = log, verdicts

    def take(self, step: int) -> Taken:
        taken = super().take(step)
        first, *more = _parts(taken.arrived)
        self._log.append(
            "take",
            step,
            open=taken.open,
            left=taken.left,
            arrived=first,
            more=len(more),
            cancelled=[list(each) for each in taken.cancelled],
        )
        for part in more:
            self._log.append("arrived", step, arrived=part)
        return taken

    def cancel(self, uid: int, error: str | None = None) -> None:
        if error is not None:
            self._verdicts.object(uid, error)
        super().cancel(uid, error)


class ReplayedInbox(Inbox):
    """That of every other rank: it has what rank 0 took in, and nothing else.

    `remake` makes a request of what the log says of it, `cancelled` hears of those that rank 0
    ends, whether or not they have begun. What is handed in here goes nowhere: rank 0
    decides who is served. A request that fails on this rank alone ends the group.
    """

    def __init__(
        self,
        max_queue: int,
        log: Log,
        verdicts: Verdicts,
        remake: Callable[[dict[str, Any]], Request],
        cancelled: Callable[[int, str | None], None],
    ) -> None:
        super().__init__(max_queue)
        self._log, self._verdicts = log, verdicts
        self._remake, self._cancelled_there = remake, cancelled
        self._open = True

    def take(self, step: int) -> Taken:
        entry = self._log.next("take", step)
        self._open = bool(entry["open"])
        specs = list(entry["arrived"])
        for _ in range(int(entry["more"])):
            specs += self._log.next("arrived", step)["arrived"]
        arrived = tuple(map(self._remake, specs))
        cancelled = tuple((int(uid), error) for uid, error in entry["cancelled"])
        for each in cancelled:
            self._cancelled_there(*each)
        return Taken(self._open, bool(entry["left"]), arrived, cancelled)

    def submit_all(self, requests: Iterable[Request]) -> None:
        """Nothing: they come by the log."""

    def cancel(self, uid: int, error: str | None = None) -> None:
        if error is not None:
            self._verdicts.object(uid, error)

    def open(self) -> None:
        """Nothing: it is open for as long as that of rank 0."""

    def close(self) -> None:
        """Nothing, too."""

    def leave(self) -> None:
        """Nothing: runs begin anew when those of rank 0 do."""

    def resume(self) -> None:
        """Nothing, too."""

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def over(self) -> bool:
        return not self._open

    def wait(self, seconds: float) -> None:
        """Not at all: the next entry of the log is waited for where it is read."""
