"""Where code of others raised an error: what is theirs is told with its line."""

from __future__ import annotations

import os
import sysconfig
from types import FrameType

_LIBRARIES = frozenset(("torch", "transformers", "tokenizers", "numpy", "xgrammar", "llguidance"))


def raised_at(error: BaseException) -> str:
    """Where code that is not ours raised it: ` (mine.py:7, in drafts)`; else nothing.

    That is what our code called last, such as a policy, or what a node is made of. The file's name
    alone is told, since errors reach clients, whom folders do not concern.
    """
    found, traceback = "", error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package == "stepweave":
            found = ""
        elif not found and not _is_library(frame, package):
            name = os.path.basename(frame.f_code.co_filename)
            found = f" ({name}:{traceback.tb_lineno}, in {frame.f_code.co_name})"
        traceback = traceback.tb_next
    return found


def _is_library(frame: FrameType, package: str) -> bool:
    file = frame.f_code.co_filename
    installed = file.startswith(tuple(sysconfig.get_path(n) for n in ("purelib", "platlib")))
    of_python = file.startswith(sysconfig.get_path("stdlib")) and not installed
    return package in _LIBRARIES or of_python or file.startswith("<")
