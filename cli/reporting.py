"""How a mistake is told: one clear line on stderr, and the exit status that belongs to it.

The status is the same on every verb. 1: what was examined is wrong, which is what a file says, a
plan or a request. 2: the command is wrong, which is an option, a setting, a name that nothing has,
or a file that cannot be read or written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import UnsupportedOperation

from ..configs.errors import ConfigError
from ..graph.errors import StepweaveError
from .signals import Terminated

UNSOUND = 1
USAGE = 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
BROKEN_PIPE = 141
MOST_LINES = 30
LONGEST_LINE = 1000


class Exit(Exception):
    """End the program with this code; everything to be said has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def say(message: str) -> None:
    """A line on stderr; where that cannot be written there is nowhere to say so."""
    with suppress(OSError):
        print(visible(message), file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Control characters spelled out: what a model or a server says must not drive the terminal."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1]
        for letter in text
    )


def debugging() -> bool:
    """Whether `--debug` was given: tracebacks are wanted."""
    return _debug.get()


_debug: ContextVar[bool] = ContextVar("debug", default=False)


def status_of(error: StepweaveError) -> int:
    """The exit status that tells of `error`."""
    if isinstance(error, ConfigError):
        said_by_a_file = all(problem.mark.line is not None for problem in error.problems)
        return UNSOUND if said_by_a_file else USAGE
    return USAGE if error.names_nothing else UNSOUND


def open_closed_streams() -> None:
    """Give a program that was started without stdout or stderr streams to write to.

    What is written to the one fails and is told of; there is nobody to read the other.
    """
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115 - for good
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for good


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn every exception into a line on stderr and an `Exit`; with `debug`, let it through."""
    before = _debug.set(debug)
    try:
        yield
        sys.stdout.flush()  # here, where what goes wrong is told in one line
    except (KeyboardInterrupt, StepweaveError) as error:
        if debug:
            raise
        raise Exit(_tell(error)) from error
    except OSError as error:
        if debug or error.filename is not None:  # standard output is a descriptor, without a name
            raise
        raise Exit(unwritable(error)) from error
    finally:
        _debug.reset(before)


def _tell(error: BaseException) -> int:
    if isinstance(error, Terminated):
        say("terminated")
        return TERMINATED
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    assert isinstance(error, StepweaveError)
    for line in told(error):
        say(f"error: {line}")
    return status_of(error)


def told(error: StepweaveError) -> list[str]:
    """The lines of its message, cut where they repeat what somebody gave at great length."""
    lines = [short(line) for line in error.message.splitlines()]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"and {len(lines) - MOST_LINES} more lines like these"]
    return lines


def short(line: str) -> str:
    """The line, with its middle left out where it is very long."""
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"


def unwritable(error: OSError) -> int:
    """Standard output is closed or full. Python flushes it once more at the end: give it a sink."""
    with suppress(UnsupportedOperation):  # a stand-in for stdout, which has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE  # the reader has gone, as `head` does: nothing to say
    say(f"error: standard output cannot be written: {error.strerror}")
    return USAGE
