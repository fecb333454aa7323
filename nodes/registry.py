"""The node kinds there are: ours, and those that installed packages bring.

A kind is found by its registered name only. A pipeline file can therefore never name code to
import, which is how configuration loaders elsewhere came to run anything a file asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..graph.errors import GraphError, StepweaveError, did_you_mean
from .drafter import Drafter
from .kind import NodeKind

NODES, DRAFTERS = "stepweave.nodes", "stepweave.drafters"  # groups of entry points

_BUILT_IN = (
    "schedule",
    "prepare_inputs",
    "forward",
    "bitmask",
    "sample",
    "draft_model",
    "eagle",
    "eagle3",
    "ngram",
    "d2h_counts",
    "d2h_copy",
    "commit",
)


def known_kinds(*, installed: bool = True) -> tuple[str, ...]:
    """Names of all kinds, drafters included, without importing the code of any; of installed
    packages, if asked.
    """
    theirs = sorted(point.name for point in _installed()) if installed else ()
    return (*_BUILT_IN, *theirs)


@cache
def kind(name: str) -> NodeKind:
    """The kind of that name. Raises `GraphError` with the nearest right name."""
    if name in _BUILT_IN:
        return _kind_of(import_module(f".{name}", __package__).KIND)
    for point in _installed():
        if point.name == name:
            return _loaded(point)
    raise GraphError(
        f"unknown node kind {name!r}{did_you_mean(name, known_kinds())}", code="SW-KIND"
    )


def _installed() -> Iterator[EntryPoint]:
    for group in (NODES, DRAFTERS):
        yield from entry_points(group=group)


def _kind_of(found: Any) -> NodeKind:
    return found.kind() if isinstance(found, Drafter) else found


def _loaded(point: EntryPoint) -> NodeKind:
    """The kind of an installed package. What goes wrong in its code is told as its own fault."""
    what, must = ("drafter", Drafter) if point.group == DRAFTERS else ("node kind", NodeKind)
    where = f"{what} {point.name!r} of {_package(point)}: entry point {point.value!r}"
    try:
        loaded = point.load()
        if isinstance(loaded, must):
            return _kind_of(loaded)
    except StepweaveError as error:
        raise GraphError(f"{where}: {error}", code=error.code) from error
    except (Exception, SystemExit) as error:  # the boundary: code that is not ours
        raise GraphError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. Update the package, or "
            "uninstall it",
            code="SW-KIND",
        ) from error
    raise GraphError(
        f"{where} must name a {must.__name__}, not an object of type {type(loaded).__name__}",
        code="SW-KIND",
    )


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name!r}" if point.dist else "an installed package"
