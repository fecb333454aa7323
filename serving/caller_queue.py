"""One caller at a time, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from .engine import EngineError


class CallerQueue:
    """Who may use an engine that serves one call at a time.

    First come, first served: a plain lock may let one thread overtake another for ever. Waiting
    can be interrupted by Ctrl-C, and gives the place up.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._line: deque[threading.Lock] = (
            deque()
        )  # the first has the turn; each is held until then
        self._calling_back: set[int] = set()  # threads inside a callback of whoever has the turn
        self._closed = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for one's turn, and have it in the block.

        Raises `EngineError` from inside a callback, whose own turn would never end, and after
        `close`.
        """
        if threading.get_ident() in self._calling_back:
            raise EngineError(
                "called from a callback of this LLM, whose call has not ended: call it again "
                "after that call has ended"
            )
        mine = threading.Lock()
        mine.acquire()
        try:
            with self._guard:
                self._line.append(mine)
                if self._line[0] is mine:
                    mine.release()
            with mine:
                if self._closed:
                    raise EngineError("this LLM is closed: make a new one")
                yield
        finally:
            self._leave(mine)

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        """The block runs a user's callback: no turn can be had in it."""
        thread = threading.get_ident()
        nested = thread in self._calling_back
        self._calling_back.add(thread)
        try:
            yield
        finally:
            if not nested:
                self._calling_back.discard(thread)

    def close(self) -> None:
        """Refuse whoever waits, and whoever comes."""
        self._closed = True

    def _leave(self, mine: threading.Lock) -> None:
        with self._guard:
            if mine not in self._line:
                return  # interrupted before it stood in line
            first = self._line[0] is mine
            self._line.remove(mine)
            if first and self._line:
                self._line[0].release()
