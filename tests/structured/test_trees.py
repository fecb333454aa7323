"""Masks of a draft tree are those of each of its ways, filled one by one."""

import random

import numpy as np
import pytest

from stepweave.nodes.tree import Tree
from stepweave.structured.backend import (
    Matcher,
)
from stepweave.structured.bitmask import words
from stepweave.structured.filling import fill_batch
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.trees import fill_tree
from stepweave.testing.engines import VOCAB, tiny_grammars

TREE = Tree.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0)])
K = len(TREE.parents)


def matcher(regex: str = "(ab|ac|b(c|d)*|[0-9]{2,4})z") -> Matcher:
    return tiny_grammars().compile(GrammarSpec.from_request({"regex": regex})).matcher()


def way_to(place: int) -> list[int]:
    """The places on the way to `place`, the root left out."""
    found: list[int] = []
    while place:
        found.insert(0, place)
        place = TREE.parents[place - 1]
    return found


def allowed_after(drafts: list[int], at: Matcher) -> np.ndarray:
    """The mask after these drafts, and how many of them are valid."""
    rows = np.zeros((len(drafts) + 1, words(VOCAB)), np.int32)
    return rows[-1] if at.fill_window(drafts, rows) == len(drafts) else at.closed_row


def text(row: np.ndarray) -> list[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(bits[:VOCAB]).tolist()
    return found


@pytest.mark.parametrize("seed", range(12))
def test_each_row_is_that_of_the_way_to_its_place(seed: int) -> None:
    rnd, at = random.Random(seed), matcher()
    drafts = [-1] * K
    for place in range(1, K + 1):  # mostly what is allowed there
        way = [drafts[each - 1] for each in way_to(TREE.parents[place - 1])]
        allowed = text(allowed_after(way, at))
        drafts[place - 1] = rnd.choice([*allowed, *allowed, 7, -1, VOCAB])
    rows = np.full((K + 2, words(VOCAB)), 5, np.int32)
    valid = fill_tree(at, drafts, TREE.parents, rows)
    passed = 0
    for place in range(K + 1):
        way = [drafts[each - 1] for each in way_to(place)]
        assert rows[place].tolist() == allowed_after(way, at).tolist()
        filled = np.zeros((len(way) + 1, words(VOCAB)), np.int32)
        passed += bool(place) and at.fill_window(way, filled) == len(way)
    assert valid == passed
    assert rows[K + 1].tolist() == at.closed_row.tolist()
    assert allowed_after([], at).tolist() == allowed_after([], matcher()).tolist()


def test_a_batch_fills_trees_beside_windows_and_failures_stay_with_their_row() -> None:
    one, other, broken = matcher(), matcher(), matcher()
    with pytest.raises(Exception, match="undo"):
        broken.rollback(1)
    a, b = (text(allowed_after([], one))[index] for index in (0, 1))
    masks = np.zeros((3, 3, words(VOCAB)), np.int32)
    items = [(one, [a, b], 0), (other, [a, b], 1), (broken, [a, b], 2)]
    counts, failures = fill_batch(items, masks, {0: [0, 0], 2: [0, 0]})
    chain = np.zeros((3, words(VOCAB)), np.int32)
    assert counts[1] == matcher().fill_window([a, b], chain)
    assert masks[1].tolist() == chain.tolist()
    assert counts[0] == 2
    assert masks[0, 2].tolist() == allowed_after([b], matcher()).tolist()
    assert list(failures) == [2]
    assert masks[2].tolist() == [broken.closed_row.tolist()] * 3
