"""Which steps have begun, and after which one no more begin.

A step begins when the first of its ops is about to run, and a step that has begun is finished:
all its ops run. `stop` therefore fixes the end at the latest step that has begun by then, and
every op, on whatever actor, decides alike, by one comparison with `begun`: there is no step of
which only some ops ran, and no version of a value that was never produced is ever read. How
many further steps are in flight at a stop depends on the plan (and where the stopping op is on
another actor than the op that begins steps, on timing); their ops find whatever state the
stopping op left, and complete.

Steps before 0 and after the last are skipped, not absent: their ops still wait, launch and
record.
"""

from __future__ import annotations

import math
import threading

BEFORE_ALL = -(2**60)  # the step of an op that has not come to its first yet


class Aborted(Exception):
    """Raised in an actor to end it, because another actor failed or the run was given up."""


class Frontier:
    """Shared by all actors of a run. `begun` is read by every op; the rest is off the hot path."""

    __slots__ = ("_lock", "aborted", "begun", "end", "last", "tail")

    def __init__(self, steps: int | None, *, tail: int) -> None:
        """`tail` iterations follow the last step."""
        self._lock = threading.Lock()
        self.tail = tail
        self.aborted = False
        self.begun: float = -1
        self.last: float = math.inf if steps is None else steps - 1
        self.end: float = self.last + tail  # the last iteration of every actor

    @property
    def steps(self) -> int:
        """Steps begun so far."""
        return int(max(self.begun, -1)) + 1

    def admit(self, step: int) -> bool:
        """Whether `step` runs, beginning it if it is new. Only for steps not known to run.

        Raises `Aborted` if no op is to run any more.
        """
        with self._lock:
            if self.aborted:
                raise Aborted
            if step < 0 or step > self.last:
                return False
            self.begun = max(self.begun, step)
            return True

    def stop(self, step: int = -1) -> None:
        """Let no step begin after `step`, or after those that have begun already."""
        with self._lock:
            if not self.aborted:
                self.last = min(self.last, max(self.begun, step))
                self.end = self.last + self.tail

    def abort(self) -> None:
        """Let no op run any more: each actor ends at its next op."""
        with self._lock:
            self.aborted = True
            self.begun = -math.inf  # sends every op to `admit`, which raises
