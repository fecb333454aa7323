"""Combinations of features of which the suite tries a share, and the nightly tests all others."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

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
