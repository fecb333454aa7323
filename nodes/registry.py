"""The node kinds there are: ours, and those that installed packages bring.

A kind is found by its registered name only. A pipeline file can therefore never name code to
import, which is how configuration loaders elsewhere came to run anything a file asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

from ..graph.entry_points import load, registered
from ..graph.entry_points import passed_over as hidden
from ..graph.errors import GraphError, did_you_mean
from .drafter import Drafter
from .kind import NodeKind

NODES, DRAFTERS = "stepweave.nodes", "stepweave.drafters"  # groups of entry points

_BUILT_IN = (
    "schedule",
    "swap",
    "encode",
    "fork",
    "prepare_inputs",
    "forward",
    "bitmask",
    "jump_forward",
    "sample",
    "keep_path",
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "medusa",
    "ngram",
    "suffix",
    "d2h_counts",
    "d2h_tokens",
    "draft_mask",
    "d2h_copy",
    "commit",
)

BETWEEN_STAGES = ("log", "receive", "send", "tell", "tell_drafts", "hear", "hear_drafts")
"""Kinds that no file lists: see `stages.py`."""


def known_kinds(*, installed: bool = True) -> tuple[str, ...]:
    """Names of all kinds, drafters included, without importing the code of any; of installed
    packages, if asked.
    """
    theirs = sorted(point.name for point in _installed()) if installed else ()
    return (*_BUILT_IN, *theirs)


def passed_over() -> dict[str, list[str]]:
    """By name, packages whose kind nobody finds, since another has its name."""
    named = ((point.name, point) for point in _installed())
    return hidden(named, (*_BUILT_IN, *BETWEEN_STAGES))


@cache
def kind(name: str) -> NodeKind:
    """The kind of that name. Raises `GraphError` with the nearest right name."""
    if name in _BUILT_IN or name in BETWEEN_STAGES:
        return _kind_of(import_module(f".{name}", __package__).KIND)
    for point in _installed():
        if point.name == name:
            what, must = (
                ("drafter", Drafter) if point.group == DRAFTERS else ("node kind", NodeKind)
            )
            return load(
                point, what, partial(_checked, name, must), partial(GraphError, code="SW-KIND")
            )
    raise GraphError(
        f"unknown node kind {name!r}{did_you_mean(name, known_kinds())}", code="SW-KIND"
    )


def _installed() -> Iterator[EntryPoint]:
    for group in (NODES, DRAFTERS):
        yield from registered(group)


def _kind_of(found: Any) -> NodeKind:
    return found.kind() if isinstance(found, Drafter) else found


def _checked(name: str, must: type, found: Any) -> NodeKind:
    if not isinstance(found, must):
        said = f"it must name a {must.__name__}, not an object of type {type(found).__name__}"
        raise GraphError(said, code="SW-KIND")
    made = _kind_of(found)
    if made.name != name:
        said = f"it is called {made.name!r}: entry point and kind share one name"
        raise GraphError(said, code="SW-KIND")
    return made
