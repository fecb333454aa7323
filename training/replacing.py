"""A folder that is written anew: readers see the old one or the new, never a part of one.

A system renames one folder at a time: for the moment between two renames there is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """An empty folder to fill; it takes the place of `out` when the block ends well.

    A link is followed, and what it names is replaced.
    """
    out = Path(os.path.realpath(out))
    fresh, old = out.with_name(out.name + ".new"), out.with_name(out.name + ".old")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    yield fresh
    for file in fresh.iterdir():
        file.chmod(0o644)
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)  # of a run that was ended here
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)
