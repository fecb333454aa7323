"""Where in the code of an op something happened, for errors that name file and line."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))
_CHECKING = os.path.join(os.path.dirname(_HERE), "testing", "checking")
_OURS = frozenset(
    os.path.join(_HERE, name) for name in ("source_line.py", "exits.py", "context.py", "homes.py")
) | {os.path.join(os.path.dirname(_HERE), "graph", "bind.py")}
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib")})


def _torch() -> str:
    """The folder of torch, which need not be loaded."""
    found = find_spec("torch")
    return os.path.dirname(str(found.origin)) + os.sep if found else "<torch>"


_TORCH = _torch()


def frames() -> Iterator[FrameType]:
    """From the innermost on, without torch's own and those that watch, up to the executor's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        folder = os.path.dirname(file)
        if file not in _OURS and folder != _CHECKING:
            if folder == _HERE:
                return
            if not file.startswith((_TORCH, "<")):
                yield frame
        frame = frame.f_back


def where() -> tuple[str | None, int | None, str]:
    """File and line of the first frame outside torch, and a sentence that says so.

    If that is in an installed package, the sentence also names the line that called into it.
    Nothing where the op's function has returned, as one made by `node` has when it publishes.
    """
    found = frames()
    first = next(found, None)
    if first is None:
        return None, None, ""
    at = f"{first.f_code.co_filename}:{first.f_lineno}, in {first.f_code.co_name}"
    if _is_installed(first):
        caller = next((frame for frame in found if not _is_installed(frame)), None)
        if caller is not None:
            name = caller.f_code.co_name
            at += f", called from {caller.f_code.co_filename}:{caller.f_lineno}, in {name}"
    return first.f_code.co_filename, first.f_lineno, at


def _is_installed(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_INSTALLED)
