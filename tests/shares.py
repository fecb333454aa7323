"""Combinations of features of which the suite tries a share, and the nightly tests all others.

Those take hours, so they come in shares too: for several machines, or several nights.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256

import pytest


def one_in(n: int, *axes: Iterable[object]) -> list[object]:
    """All combinations, as parameters; nightly but for one in `n`.

    That is where the places of the values in their axes have a sum that `n` divides. Any values of
    two axes meet in one of these where another axis has at least `n` values.
    """
    return [
        pytest.param(
            *(value for _, value in each),
            id="-".join(f"{value}" for _, value in each),
            marks=pytest.mark.nightly if sum(at for at, _ in each) % n else (),
        )
        for each in itertools.product(*map(enumerate, axes))
    ]


def leave_samples(items: Iterable[pytest.Item]) -> None:
    """Makes nightly what the suite leaves out of tests marked `sampled(cases)`.

    Of each such function the suite runs so many cases, the first by a hash of their names: the same
    each time, on any machine, and spread over all axes.
    """
    functions = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled"):
            name = item.originalname if isinstance(item, pytest.Function) else item.name
            functions[item.location[0], name].append(item)
    for cases in functions.values():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        (kept,) = mark.args
        by_day = [each for each in cases if not each.get_closest_marker("nightly")]
        by_day.sort(key=lambda each: sha256(each.nodeid.encode()).digest())
        for each in by_day[kept:]:
            each.add_marker(pytest.mark.nightly)


def keep(config: pytest.Config, items: list[pytest.Item], kept: Iterable[pytest.Item]) -> None:
    """Leaves all other tests out, and says so."""
    chosen = dict.fromkeys(kept)
    config.hook.pytest_deselected(items=[each for each in items if each not in chosen])
    items[:] = chosen


def share_of(said: str) -> tuple[int, int]:
    """Of `3/8`: the third share of eight. Raises `ValueError` where there is none such."""
    share, slash, shares = said.partition("/")
    if not slash or not (share.isdecimal() and shares.isdecimal()):
        raise ValueError(f"a share is written as 3/8, not as {said!r}")
    found = int(share), int(shares)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(f"of {found[1]} shares there is none of number {found[0]}")
    return found
