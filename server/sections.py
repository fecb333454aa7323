"""An output taken apart as it comes: reasoning, text, and calls of functions.

Whoever pushes text gets it back in pieces that say what they belong to. Pushed in any pieces, or
whole, a text gives the same sections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a section. `call`: which of the answer's calls it belongs to, counted from 0.

    `name`: the text is the name of a function, which is called. `arguments`: it is a part of the
    call's arguments, which are JSON; with the `last` one they are whole.
    """

    kind: Literal["reasoning", "content", "name", "arguments"]
    text: str
    call: int = 0
    last: bool = False


class Section(Protocol):
    """Takes text of an output in its order."""

    def push(self, text: str) -> Iterator[Piece]:
        """What is settled by this text."""
        ...

    def finish(self) -> Iterator[Piece]:
        """What was held back, at the end of the output."""
        ...


class Content:
    """Text that is nothing but text."""

    def push(self, text: str) -> Iterator[Piece]:
        if text:
            yield Piece("content", text)

    def finish(self) -> Iterator[Piece]:
        return iter(())


class Reasoning:
    """A section of reasoning up to its end marker, which is shown nowhere; then another section.

    A beginning marker that the model writes itself is left out too.
    """

    def __init__(self, end: str, then: Section, begin: str | None = None) -> None:
        self._end, self._begin, self._then = end, begin, then
        self._held = ""
        self._inside = True

    def push(self, text: str) -> Iterator[Piece]:
        if not self._inside:
            yield from self._then.push(text)
            return
        self._held += text
        if self._begin is not None:
            started = self._held.lstrip()
            if started.startswith(self._begin):
                self._held, self._begin = started[len(self._begin) :], None
            elif self._begin.startswith(started):
                return  # it may be one yet
            else:
                self._begin = None
        before, marker, after = self._held.partition(self._end)
        if marker:
            self._inside, self._held = False, ""
            if before:
                yield Piece("reasoning", before)
            yield from self._then.push(after)
            return
        kept = held_back(self._held, (self._end,))
        shown, self._held = self._held[: len(self._held) - kept], self._held[-kept:] * bool(kept)
        if shown:
            yield Piece("reasoning", shown)

    def finish(self) -> Iterator[Piece]:
        if self._inside:
            if self._held:
                yield Piece("reasoning", self._held)
            self._held = ""
            return
        yield from self._then.finish()


def held_back(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0
