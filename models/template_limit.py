"""A limit on the work of a chat template, which is a program of whoever made the model.

The sandbox that templates run in keeps them from the interpreter, not from running without end.
Lines are counted, and not seconds: what is refused does not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

MAX_TEMPLATE_LINES: Final = 2_000_000
"""Lines that a template may execute for one conversation. A thousand messages take some 20,000."""

_TEMPLATE = "<template>"  # the file name of what Jinja compiles from a text


class TemplateLimit(RuntimeError):
    """A template has executed more lines than it may."""


@contextmanager
def at_most_lines(most: int) -> Iterator[None]:
    """In the block templates that this thread renders may execute so many lines in all.

    The line after them raises `TemplateLimit`. A trace function of somebody else is set aside.
    """
    left = most

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise TemplateLimit(f"it executes more than {most} lines")
        return line

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        return line if frame.f_code.co_filename == _TEMPLATE else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before)
