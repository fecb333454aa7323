"""Ctrl-C and TERM: both end a program soon and in order, with what was done.

The exit status is 128 + the signal's number, as shells report it: 130 and 143.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import FrameType

_ONE_PRESS_SECONDS = 1.0  # a shell may signal the process and its group: still one Ctrl-C


class Terminated(KeyboardInterrupt):
    """TERM, where it is not awaited: handled wherever Ctrl-C is."""


def raise_on_term() -> None:
    """From here on TERM raises `Terminated` in the main thread, as Ctrl-C raises its exception."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@dataclass
class Interruption:
    """Which signal came first, and when; none so far while `number` is None."""

    number: int | None = None
    at: float = 0.0

    def __bool__(self) -> bool:
        return self.number is not None

    @property
    def code(self) -> int:
        assert self.number is not None, "not interrupted"
        return 128 + self.number

    @property
    def exception(self) -> KeyboardInterrupt:
        """What the signal would have raised."""
        return Terminated() if self.number == signal.SIGTERM else KeyboardInterrupt()

    @property
    def word(self) -> str:
        return "terminated" if self.number == signal.SIGTERM else "interrupted"

    def note(self, number: int) -> bool:
        """Whether this is the first."""
        if self:
            return False
        self.number, self.at = number, perf_counter()
        return True


@contextmanager
def cancelled_by_signals(cancel: Callable[[], None]) -> Iterator[Interruption]:
    """In the block the first Ctrl-C or TERM calls `cancel`; a later one raises where it is.

    Yields what came. For the main thread only, as all handling of signals.
    """
    interruption = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        if interruption.note(number):
            cancel()
        elif perf_counter() - interruption.at > _ONE_PRESS_SECONDS:
            raise Interruption(number).exception

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
