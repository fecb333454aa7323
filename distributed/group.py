"""A group of ranks that run one program together: messages, and one end for all.

What runs on a group does the same on every rank. Whoever finds that a rank did something else, or
is gone, ends the group: every rank hears why, and nobody waits for a rank that will not answer.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from socket import socket
from threading import Thread
from time import monotonic

from .errors import GroupEnded
from .frames import Message
from .links import Links
from .neighbours import Neighbour
from .ranks import Ranks

Receiver = Callable[[int, Message], None]

SILENCE_S = 10.0
"""How long a rank may say nothing, unless a pipeline says otherwise."""

SETTLE_S = 0.5
"""How long a failure of one rank waits for the same failure of the others. They go through the same
collectives, so what fails on all of them fails at nearly the same time."""

STUCK_S = 2.0
"""How long a rank of which an op has failed may still be inside others that wait for ranks."""

RELEASED_S = 1.0
"""How long a process that ends waits for a thread to come out of a collective: the connections of
the ranks that are gone are closed by then."""

LEAVE_S = 10.0
"""How long a rank waits for one that has left in order: what that one owed, it has sent before."""


class Group:
    """This process as a rank of a group; `connections` are those to the ranks that it talks to.

    Rank 0 talks to all, every other rank to rank 0. `end` may be called by any thread. `abandon`
    is called when the group ends, to release whoever waits inside a collective. `processes` are the
    numbers of the other ranks' processes, by rank, where they are on this machine: one that falls
    silent is ended when this process ends.
    """

    def __init__(
        self,
        ranks: Ranks,
        connections: Mapping[int, socket],
        *,
        silence_s: float = SILENCE_S,
        abandon: Callable[[], None] | None = None,
        processes: Mapping[int, int] | None = None,
    ) -> None:
        self.ranks = ranks
        self.failure: GroupEnded | None = None
        self.step: int | None = None  # at which this rank is, for whoever is told of its end
        # What this rank does that another has to do with it, and since when.
        self._waits: dict[object, tuple[str, float]] = {}
        self._abandon = abandon
        self._processes = dict(processes or {})
        self._hanging: list[Neighbour] = []
        self._inside: list[Thread] = []
        self._closed = False
        self._ending = threading.Lock()
        self._on_end: list[Callable[[GroupEnded], None]] = []
        self._ticks: list[Callable[[], None]] = []
        self._left: dict[int, float] = {}  # ranks that have taken their leave, and when
        self._receivers: dict[str, Receiver] = {"end": self._told, "bye": self._leaves}
        self._links = Links(
            connections,
            silence_s=silence_s,
            receive=self._receive,
            lost=self._lost,
            tick=self._tick,
            deaf=self._deaf,
        )

    @property
    def rank(self) -> int:
        return self.ranks.rank

    @property
    def size(self) -> int:
        return self.ranks.size

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.ranks.leads

    # -- parts of a group ------------------------------------------------------------------

    def on(self, kind: str, receiver: Receiver) -> None:
        """Have messages of `kind` taken in by `receiver(rank, message)`; before `start`."""
        assert kind not in self._receivers, f"messages {kind!r} have a receiver already"
        self._receivers[kind] = receiver

    def on_tick(self, look: Callable[[], None]) -> None:
        """Have `look` called some ten times a second; before `start`."""
        self._ticks.append(look)

    def on_end(self, tell: Callable[[GroupEnded], None]) -> None:
        """Have `tell` called when the group ends; at once where it has."""
        with self._ending:
            if self.failure is None:
                self._on_end.append(tell)
                return
        tell(self.failure)

    def start(self) -> None:
        """Begin to listen."""
        self._links.start()
        atexit.register(self._at_exit)

    def outlast(self, thread: Thread) -> None:
        """Have the process wait, when it ends after the group, for a thread that may be inside a
        collective: taken out of one while Python ends, it would abort the process. One that does
        not come out in time is not waited for, and Python does not end in order.
        """
        self._inside.append(thread)

    # -- messages --------------------------------------------------------------------------

    def send(self, message: Message, *, to: int | None = None) -> None:
        """To the rank `to`, or to every rank that this one talks to. Raises `GroupEnded`."""
        self.check()
        if gone := self._left.keys() & ({to} if to is not None else self._left.keys()):
            raise self.end(f"rank {min(gone)} has left")
        try:
            self._links.send(message, to=to)
        except OSError as error:
            raise self.end(f"rank {self.rank} cannot reach the others: {error}") from error

    def check(self) -> None:
        """Raises `GroupEnded` where the group has ended."""
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def meeting(self, what: str) -> Iterator[None]:
        """In the block this rank does what another has to do with it: whoever is told of an end
        that comes meanwhile is told that, too. By any thread; it may be left by another.
        """
        this = object()
        self._waits[this] = (what, monotonic())
        try:
            yield
        finally:
            del self._waits[this]

    @property
    def waits_since(self) -> float | None:
        """Since when this rank has been in a meeting, the longest; None: it is in none."""
        return min((since for _, since in self._waits.copy().values()), default=None)

    def _receive(self, rank: int, message: Message) -> None:
        receiver = self._receivers.get(message["kind"])
        if receiver is None:
            self.end(f"rank {rank} sent a message of unknown kind {message['kind']!r:.40}")
            return
        try:
            receiver(rank, message)
        except (KeyError, TypeError, ValueError) as error:
            self.end(f"rank {rank} sent a wrong message {message['kind']!r}: {error!r:.200}")

    def _tick(self) -> None:
        # One that has left is no failure for whoever can do without it.
        waits = self.waits_since
        for rank, left in self._left.items():
            if waits is not None and monotonic() - max(left, waits) > LEAVE_S:
                self.end(f"rank {rank} has left")
        for look in self._ticks:
            look()

    # -- the end ---------------------------------------------------------------------------

    def end(self, why: str, *, gone: int | None = None) -> GroupEnded:
        """End the group on every rank, once; the error to raise, with the first reason.

        `gone`: the rank that can say nothing itself.
        """
        with self._ending:
            if self.failure is not None:
                return self.failure
            failure = GroupEnded(f"the group of {self.size} ranks has ended: {why}", gone=gone)
            self.failure = failure
            tell = list(self._on_end)
        with suppress(OSError):
            self._links.tell({"kind": "end", "why": why})
        for each in tell:
            each(failure)
        if self._abandon is not None:
            # It may wait for the very collective that it ends, and is itself in the library then.
            thread = Thread(target=self._abandon, name="stepweave-abandon", daemon=True)
            thread.start()
            self.outlast(thread)
        return failure

    def close(self) -> None:
        """Leave in order: nobody takes the end of the connections for a failure."""
        self._closed = True
        if self.failure is None:
            atexit.unregister(self._at_exit)
        self._links.close()

    def _told(self, rank: int, message: Message) -> None:
        self.end(str(message["why"]))

    def _leaves(self, rank: int, message: Message) -> None:
        """A farewell: what is under way has come to its end everywhere, or soon will have."""
        if not self._closed:
            self._left[rank] = monotonic()

    def _lost(self, rank: int, why: str, silent: bool) -> None:
        if silent and rank in self._processes:
            self._hanging.append(Neighbour(self._processes[rank]))
        at = "" if self.step is None else f"; rank {self.rank} was at step {self.step}"
        doing = dict.fromkeys(what for what, _ in self._waits.copy().values())
        waits = "".join(f", {what}" for what in doing) if at else ""
        self.end(f"rank {rank} is gone: {why}{at}{waits}", gone=rank)

    def _deaf(self, why: str) -> None:
        self.end(f"rank {self.rank} cannot listen any more: {why}")

    def _at_exit(self) -> None:
        """This process has said all that it had to say."""
        self.close()
        for each in self._hanging:
            each.kill()
        for thread in self._inside:
            thread.join(RELEASED_S)
            if thread.is_alive():
                _end_at_once()


def _end_at_once() -> None:
    """End the process as one that has failed, without what else Python does at its end."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # it may be closed, or not be there
            stream.flush()
    os._exit(1)
