"""Garbage of one test, collected without a look at what all tests before it have left."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def staying_young() -> Iterator[Callable[[], int]]:
    """In the block nothing grows old. What is made in it, and is garbage, the function collects.

    A whole collection takes seconds in a process that has run many tests.
    """
    gc.disable()
    try:
        yield partial(gc.collect, 1)
    finally:
        gc.enable()
