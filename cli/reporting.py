"""How a mistake is told: one clear line, and the exit code that belongs to it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..configs.errors import ConfigError
from ..graph.errors import StepweaveError
from .signals import Terminated

UNSOUND = 1  # the config was understood, and it or a request failed
USAGE = 2  # the command, a file or a setting is wrong
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
BROKEN_PIPE = 141


class Exit(Exception):
    """End the program with this code; everything to be said has been said."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn every exception into a line on stderr and an `Exit`; with `debug`, let it through."""
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
        raise Exit(_unwritable(error)) from error


def _tell(error: BaseException) -> int:
    if isinstance(error, Terminated):
        say("terminated")
        return TERMINATED
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    assert isinstance(error, StepweaveError)
    for line in error.message.splitlines():
        say(f"error: {line}")
    return USAGE if isinstance(error, ConfigError) else UNSOUND


def _unwritable(error: OSError) -> int:
    """Standard output is closed or full. Python flushes it once more at the end: give it a sink."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE  # the reader has gone, as `head` does: nothing to say
    say(f"error: standard output cannot be written: {error.strerror}")
    return USAGE
