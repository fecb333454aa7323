"""Imports without the garbage collector, which finds nothing in them and looks at all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """What is made within is for good: it is not examined while it is made, nor afterwards.

    Of the imports of torch and transformers, a sixth of the time is the collector's; and each full
    collection of a run would take as long again, in the middle of a step.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
