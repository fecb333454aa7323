"""The ordered log of rank 0: what came from outside, in the order in which it counts.

Rank 0 appends an entry whenever its schedule takes something in, and what it decided then. Every
other rank reads the entry in place of looking for itself, and compares what it decides. So nothing
but the log tells ranks apart from one program that is run several times.
"""

from __future__ import annotations

import queue
from collections import defaultdict, deque
from hashlib import blake2b
from typing import Any

from .errors import GroupEnded
from .frames import Message
from .group import Group

AWAKE_S = 0.5
"""How often whoever waits for an entry looks whether the group still exists."""


def digest_of(said: object) -> str:
    """A hash of plain data: numbers, texts and tuples of them."""
    return blake2b(repr(said).encode(), digest_size=8).hexdigest()


class Log:
    """Entries of rank 0, for the thread that schedules on each rank."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._entries: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # What ops came to, by op: on rank 0 until it is sent, elsewhere until it is compared.
        self._unsent: list[tuple[int, str, str]] = []
        self._mine: dict[str, deque[tuple[int, str]]] = defaultdict(deque)
        self._theirs: dict[str, deque[tuple[int, str]]] = defaultdict(deque)
        group.on("log", lambda rank, message: self._entries.put(message))
        group.on_end(self._wake)

    # -- entries ---------------------------------------------------------------------------

    def append(self, entry: str, step: int, **data: Any) -> None:
        """Send an entry to every other rank, with what ops came to since. Raises `GroupEnded`."""
        notes, self._unsent = self._unsent, []
        self._group.step = step
        self._group.send({"kind": "log", "entry": entry, "step": step, "notes": notes, **data})

    def next(self, entry: str, step: int) -> Message:
        """The next entry, which is to be of this kind and step.

        Raises `GroupEnded` where it is another, or an op came to something else than on rank 0.
        """
        group, found = self._group, None
        group.step = step
        with group.meeting("reading the log of rank 0"):
            while found is None:
                group.check()
                try:
                    found = self._entries.get(timeout=AWAKE_S)
                except queue.Empty:
                    continue
        for at, op, digest in found["notes"]:
            self._theirs[op].append((int(at), str(digest)))
            self._compare(op)
        if (found["entry"], found["step"]) != (entry, step):
            raise group.end(
                f"step {step}: rank {group.rank} is at {entry!r} of step {step}, but rank 0 at "
                f"{found['entry']!r} of step {found['step']}: one of them has left out a step"
            )
        return found

    def _wake(self, failure: GroupEnded) -> None:
        self._entries.put(None)

    # -- what ops came to ------------------------------------------------------------------

    def decided(self, step: int, op: str, said: object) -> None:
        """Compare what decides on the shapes of the step, before anybody computes with them.

        Raises `GroupEnded` where rank 0 has decided something else.
        """
        digest = digest_of(said)
        if self._group.leads:
            self.append(op, step, digest=digest)
        elif (theirs := self.next(op, step)["digest"]) != digest:
            raise self._differs(step, op, f"{digest} where rank 0 has {theirs}")

    def noted(self, step: int, op: str, said: object) -> None:
        """Compare what an op came to, later. Raises `GroupEnded` where that is known to differ."""
        digest = digest_of(said)
        if self._group.leads:
            self._unsent.append((step, op, digest))
        else:
            self._mine[op].append((step, digest))
            self._compare(op)

    def _compare(self, op: str) -> None:
        mine, theirs = self._mine[op], self._theirs[op]
        while mine and theirs:
            (step, digest), (at, other) = mine.popleft(), theirs.popleft()
            if step != at:
                raise self._differs(
                    min(step, at), op, f"step {step}, where rank 0 has step {at}: one left a step"
                )
            if digest != other:
                raise self._differs(step, op, f"{digest} where rank 0 has {other}")

    def _differs(self, step: int, op: str, how: str) -> GroupEnded:
        rank = self._group.rank
        return self._group.end(
            f"step {step}: op {op!r} came to something else on rank {rank} than on rank 0 ({how})"
        )
