"""How a mistake is told: one clear line, and the exit code that belongs to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..configs.errors import ConfigError
from ..graph.errors import StepweaveError

UNSOUND = 1  # the config was understood, and it or a request failed
USAGE = 2  # the command, a file or a setting is wrong
INTERRUPTED = 130
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
    except (KeyboardInterrupt, BrokenPipeError, StepweaveError) as error:
        if debug:
            raise
        raise Exit(_tell(error)) from error


def _tell(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader has gone. Python flushes stdout once more on its way out: give it a sink.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    assert isinstance(error, StepweaveError)
    for line in error.message.splitlines():
        say(f"error: {line}")
    return USAGE if isinstance(error, ConfigError) else UNSOUND
