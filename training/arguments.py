"""Numbers on the command line of a training: nonsense is refused before anything runs."""

from __future__ import annotations

from argparse import ArgumentTypeError


def positive(text: str) -> int:
    """A whole number from 1 on."""
    return _whole(text, 1)


def from_zero(text: str) -> int:
    """A whole number from 0 on."""
    return _whole(text, 0)


def seconds(text: str) -> float:
    """A time that is longer than none."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return found


def _whole(text: str, least: int) -> int:
    found = int(text) if text.isdecimal() else -1
    if found < least:
        raise ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return found
