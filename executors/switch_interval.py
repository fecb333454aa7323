"""How often the interpreter lets another thread go on, while any run does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_switching = threading.Lock()
_runs = 0
_before_s = 0.0


@contextmanager
def switching_every(seconds: float) -> Iterator[None]:
    """Let threads switch this often while any run goes on; restore it after the last one."""
    global _runs, _before_s
    with _switching:
        if _runs == 0:
            _before_s = sys.getswitchinterval()
            sys.setswitchinterval(min(seconds, _before_s))
        _runs += 1
    try:
        yield
    finally:
        with _switching:
            _runs -= 1
            if _runs == 0:
                sys.setswitchinterval(_before_s)
