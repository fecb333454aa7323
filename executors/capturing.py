"""A capture that hears of what no recording sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import OutOfMemoryError

from ..backends.streams import Recording
from .exits import NUMBERS, telling, watched_exits


@contextmanager
def capturing(recording: Recording) -> Iterator[None]:
    """`recording.capture()`, refused where this thread takes numbers or memory out of torch."""
    with watched_exits(), telling(_listener(recording)), recording.capture():
        yield


def why_failed(error: Exception) -> str:
    """In a line, why what raised `error` is not captured."""
    return f"cannot be captured: {type(error).__name__}: {error}".splitlines()[0]


def may_pass(error: Exception) -> bool:
    """Whether the same may be captured another time: when there is memory."""
    return isinstance(error, OutOfMemoryError)


def unheard() -> telling:
    """Within a capture: what this thread does is no part of it."""
    return telling(lambda call, args, kwargs: None)


def _listener(recording: Recording) -> Callable[[str, object, object], None]:
    """Of what a body calls: a graph would know for ever the numbers that the host got."""

    def told(call: str, args: object, kwargs: object) -> None:
        if call in NUMBERS:
            recording.refuse(f"Tensor.{call} gives the numbers of a tensor to the host")
        elif call == "data_ptr" and recording.live:
            recording.refuse("Tensor.data_ptr gives memory to code that no recording sees")

    return told
