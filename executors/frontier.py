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
from collections.abc import Callable
from typing import Any

BEFORE_ALL = -(2**60)  # the step of an op that has not come to its first yet


class Aborted(Exception):
    """Raised in an actor to end it, because another actor failed or the run was given up."""


class Frontier:
    """Shared by all actors of a run. `begun` is read by every op; the rest is off the hot path."""

    __slots__ = ("_lock", "aborted", "begins", "begun", "end", "first", "last", "tail", "turn")

    def __init__(self, steps: int | None, *, tail: int, first: int = 0) -> None:
        """Of the steps from `first` to `steps` - 1; `tail` iterations follow the last step."""
        self._lock = threading.Lock()
        self.tail = tail
        self.first = first
        self.aborted = False
        self.begins: Callable[[int], None] | None = None  # told of each step, before any op of it
        self.turn: Any = None  # what follows the last step, where another plan goes on
        self.begun: float = first - 1
        self.last: float = math.inf if steps is None else steps - 1
        self.end: float = self.last + tail  # the last iteration of every actor

    @property
    def steps(self) -> int:
        """Steps begun so far, with those before the first."""
        return int(max(self.begun, self.first - 1)) + 1

    @property
    def has_begun(self) -> bool:
        """Whether a step of its own has begun, or it is the first of its run."""
        return self.first == 0 or self.begun >= self.first

    def admit(self, step: int) -> bool:
        """Whether `step` runs, beginning it if it is new. Only for steps not known to run.

        Raises `Aborted` if no op is to run any more.
        """
        with self._lock:
            if self.aborted:
                raise Aborted
            if step < self.first or step > self.last:
                return False
            if step > self.begun:
                self.begun = step
                if self.begins is not None and self.turn is None:
                    self.begins(step)
            return True

    def stop(self, step: int = -1) -> None:
        """Let no step begin after `step`, or after those that have begun already."""
        with self._lock:
            if not self.aborted:
                self.last = min(self.last, max(self.begun, step))
                if self.turn is None:
                    self.end = self.last + self.tail
                else:
                    self.turn.frontier.stop()

    def give_over(self, step: int, end: int, turn: Any) -> None:
        """Let another plan go on from `step`: all actors leave this one after the iteration `end`.

        Only while a step begins, by `begins`.
        """
        self.turn, self.last, self.end = turn, step - 1, end

    def abort(self) -> None:
        """Let no op run any more: each actor ends at its next op."""
        with self._lock:
            self.aborted = True
            self.begun = -math.inf  # sends every op to `admit`, which raises
