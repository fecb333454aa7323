"""Whoever drafts, however many, and whatever rule judges them: tokens as the rule promises.

With an exact rule they are the reference's, as in the other matrix. With the others a greedy row's
are, and those of each row are the same at every depth. Counts are, too, where a row's number of
drafts does not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from allpairspy import AllPairs
from torch import Tensor

from stepweave.policies.acceptance import Coupled
from stepweave.policies.chosen import Policies, clash
from stepweave.sampling.windows import PARENT, Verified, Windows
from tests.serving.matrix import (
    DEPTHS,
    DRAFTED,
    DRAFTING,
    MORE_SITUATIONS,
    RULES,
    TREES,
    Cell,
    asked,
    plainly,
    run,
)
from tests.serving.test_matrix import check

AXES: list[list[Any]] = [
    list(axis)
    for axis in (
        DRAFTED,
        DRAFTING,
        RULES,
        DEPTHS,
        MORE_SITUATIONS,
        ("no grammar", "mixed"),
        ("plain", "seeded", "repetition", "mixes"),
        ("auto", "float8_e4m3"),
    )
]


def possible(chosen: list[Any]) -> bool:
    """Whether a pipeline takes these first values of a cell together."""
    if len(chosen) < 3:
        return True
    method, drafting, rule = chosen[:3]
    if method in TREES and not getattr(RULES[rule], "trees", False):
        return False
    return clash(DRAFTING[drafting], RULES[rule]) is None


def cell_of(values: list[Any]) -> Cell:
    method, drafting, rule, depth, situation, grammar, sampling, kept = values
    return Cell(depth, method, grammar, sampling, situation, kept, drafting, rule)


CELLS = [cell_of(each) for each in AllPairs(AXES, filter_func=possible)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_pair_of_drafter_policy_rule_and_situation(cell: Cell) -> None:
    check(cell)


def test_every_drafter_policy_and_rule_is_in_some_cell() -> None:
    for name, axis in (("method", DRAFTED), ("drafting", DRAFTING), ("rule", RULES)):
        assert {getattr(cell, name) for cell in CELLS} == set(axis)


class Watched(Coupled):
    """The coupled rule, which keeps copies of the trees that it judged and of what came of them."""

    def verify(self, windows: Windows) -> Verified:
        found = super().verify(windows)
        if windows.branches is not None and found.paths is not None:
            parts = windows.branches[:, PARENT], found.paths, found.counts
            JUDGED.append(tuple(each.clone() for each in parts))
        return found


JUDGED: list[tuple[Tensor, ...]] = []
"""Of each step's rows: the parents of nodes, the path that was kept, how many tokens that is."""


def elder() -> Iterator[bool]:
    """Of each draft that was kept: whether it is the first one after the token before it."""
    for step in JUDGED:
        for parents, path, count in zip(*(each.tolist() for each in step), strict=True):
            for before, place in pairwise(path[:count]):
                yield place == parents.index(before, 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", TREES)
def test_some_kept_path_leaves_the_first_branch(method: str) -> None:
    cell = Cell(1, method, "no grammar", "seeded", "chunked prefill")
    requests = asked(cell)
    JUDGED.clear()
    watched = Policies(acceptance=Watched())
    found = run(cell, requests, depth=1, executor="serial", policies=watched, checked=False)
    assert [each.output_ids for each in found.requests] == [
        plainly(each).tokens for each in requests
    ]
    assert set(elder()) == {True, False}


def test_by_cost_some_that_give_way_keep_their_blocks_and_others_do_not() -> None:
    cells = [
        Cell(1, "draft_model", "no grammar", "plain", situation)
        for situation in ("swap", "cheaper")
    ]
    every, some = (
        run(each, asked(each), depth=1, executor="serial", checked=False) for each in cells
    )
    assert 0 < some.swapped_out < every.swapped_out
