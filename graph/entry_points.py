"""Objects that installed packages bring by their entry points.

What goes wrong in the code of a package is told as the package's own fault, at this one place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from .errors import StepweaveError, told

T = TypeVar("T")


def registered(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, of every package on `sys.path`. Loads no code of packages."""
    return _of_group(group, tuple((folder, _changed(folder)) for folder in sys.path))


# Reading what each package declares takes 3 ms, and a look-up of one name asks for it.
@lru_cache(maxsize=16)
def _of_group(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _changed(folder: str) -> int:
    """When packages came into a folder, or went from it, as its last change; 0 if not there."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def load(
    point: EntryPoint,
    what: str,
    accept: Callable[[Any], T],
    error: Callable[..., StepweaveError],
) -> T:
    """The object that an entry point names, as `accept` returns it.

    `what`: a word for it, such as `backend`. `accept` raises a `StepweaveError` for an object that
    is not usable. Whatever is wrong is raised as an `error`, which names the package.
    """
    where = f"{what} {point.name!r} of {package_of(point)}: entry point {point.value!r}"
    if not EntryPoint.pattern.match(point.value):
        raise error(f"{where} cannot be loaded: it is not of the form `module:name`")
    try:
        return accept(point.load())
    except StepweaveError as refused:
        raise error(f"{where}: {refused}", code=refused.code) from refused
    except (Exception, SystemExit) as failed:  # the boundary: code that is not ours
        raise error(
            f"{where} cannot be loaded: {told(failed)}. Update the package, or uninstall it"
        ) from failed


def passed_over(
    named: Iterable[tuple[str, EntryPoint]], taken: Iterable[str]
) -> dict[str, list[str]]:
    """By name, packages whose object nobody finds, since the name is among `taken`, those that
    ship, or is found first.
    """
    known, found = set(taken), dict[str, list[str]]()
    for name, point in named:
        if name in known:
            found.setdefault(name, []).append(package_of(point))
        known.add(name)
    return found


def package_of(point: EntryPoint) -> str:
    """The package that brings an entry point, as messages name it."""
    return f"package {point.dist.name!r}" if point.dist else "an installed package"
