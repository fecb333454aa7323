"""What a command imports and loads, which the garbage collector need never look at."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ..graph.collector import collector_paused

_own_process = False


def own_process() -> None:
    """Say that the process is the command's own. A program that calls a verb has data of its own,
    which its collector must go on to examine.
    """
    global _own_process
    _own_process = True


@contextmanager
def importing() -> Iterator[None]:
    """What is made within is for good: it is not examined while it is made, nor afterwards in a
    process of the command's own.

    Without this a third of the processor time of `run` for one token was the collector's: a sixth
    of the imports, and the full collections after them, which look at all that was imported.
    """
    with collector_paused():
        yield
        if _own_process:
            gc.freeze()


def for_good() -> None:
    """All that there is now is for good, in a process of the command's own.

    What is loaded is hundreds of thousands of objects. A full collection that looks at them holds
    every request up for a fifth of a second. Raises nothing.
    """
    if _own_process:
        gc.collect()
        gc.freeze()
