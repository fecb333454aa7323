"""The node kinds there are: ours, and those that installed packages bring.

A kind is found by its registered name only. A pipeline file can therefore never name code to
import, which is how configuration loaders elsewhere came to run anything a file asked for.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from ..graph.errors import GraphError, did_you_mean
from .kind import NodeKind

GROUP = "stepweave.nodes"

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
    """Names of all kinds, without importing the code of any; of installed packages, if asked."""
    theirs = sorted(point.name for point in entry_points(group=GROUP)) if installed else ()
    return (*_BUILT_IN, *theirs)


@cache
def kind(name: str) -> NodeKind:
    """The kind of that name. Raises `GraphError` with the nearest right name."""
    if name in _BUILT_IN:
        found = import_module(f".kinds.{name}", __package__).KIND
        assert isinstance(found, NodeKind)
        return found
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _loaded(point)
    raise GraphError(
        f"unknown node kind {name!r}{did_you_mean(name, known_kinds())}", code="SW-KIND"
    )


def _loaded(point: EntryPoint) -> NodeKind:
    """The kind of an installed package. What goes wrong in its code is told as its own fault."""
    where = f"node kind {point.name!r} of {_package(point)}: entry point {point.value!r}"
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # the boundary: code that is not ours
        raise GraphError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}. Update the package, or "
            "uninstall it",
            code="SW-KIND",
        ) from error
    if not isinstance(loaded, NodeKind):
        raise GraphError(
            f"{where} must name a NodeKind, not an object of type {type(loaded).__name__}",
            code="SW-KIND",
        )
    return loaded


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name!r}" if point.dist else "an installed package"
