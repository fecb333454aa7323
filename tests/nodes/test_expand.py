"""Draft trees against plain ones: the nodes that EAGLE-2 would offer, found with a heap.

The drafter is a table: what comes after a way from the root is looked up. It finds that way in the
keys that its pass may see, so a node with the wrong ancestors has the wrong logits, and checks it
against the hidden state that it was given.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.models.attention import AttentionBatch
from stepweave.nodes.data import Proposal
from stepweave.nodes.ops import expand as ops
from stepweave.nodes.ops.draft_eagle import one_head
from stepweave.nodes.ops.expand import expand
from stepweave.nodes.ops.grow import Begun, Nodes, grow
from stepweave.nodes.tree import GrownTree, Growth, ListedTree, Tree
from stepweave.policies.acceptance import Acceptance, Coupled, Rejection, Typical
from stepweave.sampling.noise import Purpose, gumbel, of_window

VOCAB, BLOCK, PROMPT, AHEAD = 11, 4, 5, 1
STARTS = (9, 14, 6)  # where the first pass ended in each row
ROWS = len(STARTS)
TEMPERATURES = (0.7, 1.3, 0.0)
SEEDS = (11, 12, 13)
BLOCKS = torch.arange(1, 1 + ROWS * 12).view(ROWS, 12)

Way = tuple[int, ...]
"""The tokens of a node and of its ancestors, below the root."""


def logits_after(row: int, way: Way) -> list[float]:
    """What the table says of the token after `way`."""
    draw = random.Random(f"{row} {way}")
    return [draw.gauss(0, 1.7) for _ in range(VOCAB)]


class Table:
    """The drafter: it keeps the token of each key, and says what follows a way."""

    def __init__(self) -> None:
        self.keys: dict[int, int] = {}  # by cache slot
        self.ways: list[Way] = [()]  # a hidden state is an index of it

    def following(self, ids: Tensor, states: Tensor, batch: AttentionBatch) -> tuple[Tensor, Any]:
        """One pass: logits `[L, V]` and hidden states `[L, 1]`."""
        assert batch.tree is not None
        each = len(ids) // ROWS
        logits, leaving = torch.zeros(len(ids), VOCAB).double(), torch.zeros(len(ids), 1).double()
        meant = [at for at in range(len(ids)) if int(batch.positions[at]) >= 0]
        for at in meant:
            self.keys[int(batch.slots[at])] = int(ids[at])
        for at in meant:
            row, bits = at // each, int(batch.tree.bits[at])
            start = int(batch.tree.starts[at])
            places = [place for place in range(batch.tree.width) if bits >> place & 1]
            assert bits >> batch.tree.width == 0
            assert start == STARTS[row]
            assert places[0] == 0
            assert int(batch.positions[at]) == start + len(places) - 1
            slots = [slot_of(row, start + place) for place in places]
            assert slots[-1] == int(batch.slots[at])
            way = tuple(self.keys[slot] for slot in slots[1:])
            assert way == (*self.ways[int(states[at])], int(ids[at]))
            logits[at] = torch.tensor(logits_after(row, way)).double()
            leaving[at] = len(self.ways)
            self.ways.append(way)
        return logits, leaving


def slot_of(row: int, position: int) -> int:
    return int(BLOCKS[row, position // BLOCK]) * BLOCK + position % BLOCK


def begun(rule: Acceptance, width: int, limits: Sequence[int], *, greedy: bool) -> Begun:
    """The end of a first pass of three rows; the last one is greedy."""
    sample = SimpleNamespace(
        draft_width=width,
        draft_limit=torch.tensor(limits),
        prompt=torch.full((ROWS,), PROMPT),
        seeds=torch.tensor(SEEDS),
        temperature=torch.tensor([0.0] * ROWS if greedy else TEMPERATURES).double(),
        top_k=torch.zeros(ROWS, dtype=torch.int64),
        top_p=torch.ones(ROWS).double(),
        min_p=torch.zeros(ROWS).double(),
        any_top_k=False,
        any_top_p=False,
        xtc=None,
        greedy=greedy,
        whole=False,
    )
    inputs: Any = SimpleNamespace(sample=sample, blocks_of_samples=BLOCKS, long_rows=None)
    cache: Any = SimpleNamespace(block_size=BLOCK)
    return Begun(
        rule=rule,
        vocab_size=VOCAB,
        inputs=inputs,
        logits=torch.tensor([logits_after(row, ()) for row in range(ROWS)]).double(),
        states=torch.zeros(ROWS, 1).double(),
        positions=torch.tensor(STARTS),
        reach=48,
        cache=cache,
        following=one_head(Table().following),
        input_is_ahead=AHEAD,
        context_length=48,
    )


Scores = Callable[[int, Way, int], Tensor]
"""`[V]`: what a row's tokens after a way are chosen by; the place of the way's last node counts
where each place has noise of its own."""


def greedily(row: int, way: Way, place: int) -> Tensor:
    return torch.tensor(logits_after(row, way)).double()


def log_probs(row: int, way: Way, place: int) -> Tensor:
    """Those that the request asks for; a greedy row's are the model's own."""
    return (greedily(row, way, place) / (TEMPERATURES[row] or 1.0)).log_softmax(0)


def noisily(row: int, depth: int, purpose: Any) -> Tensor:
    """`[V]`: a row's noise at the output position of a depth; none in a greedy row."""
    at = STARTS[row] + AHEAD + depth - PROMPT
    noise = gumbel(torch.tensor([SEEDS[row]]), torch.tensor([at]), purpose, VOCAB)[0]
    return noise * (TEMPERATURES[row] > 0)


def with_noise_of_target(row: int, way: Way, place: int) -> Tensor:
    return log_probs(row, way, place) + noisily(row, len(way) + 1, Purpose.TARGET)


def with_noise_of_place(row: int, way: Way, place: int) -> Tensor:
    own = of_window(Purpose.DRAFT, torch.tensor([place]))
    return log_probs(row, way, place) + noisily(row, 1, own)


RULES: dict[str, tuple[Acceptance, bool, Scores, Scores]] = {
    "greedy": (Coupled(), True, greedily, greedily),
    "coupled": (Coupled(), False, with_noise_of_target, with_noise_of_target),
    "rejection": (Rejection(), False, log_probs, with_noise_of_place),
    "typical": (Typical(), False, greedily, greedily),
}
"""The rule, whether all rows are greedy, and scores: of trees that grow, and of listed ones."""


def by_heap(row: int, growth: Growth, scores: Scores, most: int, limit: int) -> list[Way]:
    """The nodes that EAGLE-2 offers, likeliest first.

    A node counts as much as the product of the confidences on its way. A pass expands those that
    count most; in the end those of all nodes that count most are offered. A row has room for the
    root and `limit` − 1 nodes that are expanded: others are not.
    """
    found: list[tuple[float, Way]] = []

    def expanded(sure: float, way: Way) -> list[tuple[float, Way]]:
        chances = scores(row, way, 0).softmax(0).log().tolist()
        best = heapq.nlargest(growth.each, range(VOCAB), key=chances.__getitem__)
        return [(sure + chances[token], (*way, token)) for token in best]

    waiting = expanded(0.0, ())
    found += waiting
    place = 0
    for _ in range(growth.depth - 1):
        heap = [(-sure, way) for sure, way in waiting]
        heapq.heapify(heap)
        chosen = [heapq.heappop(heap) for _ in range(min(growth.width, len(heap)))]
        new: list[tuple[float, Way]] = []
        for less, way in chosen:
            place += 1
            if place < limit:
                new += expanded(-less, way)
        found += new
        waiting = new
        if growth.among == "all":
            waiting = [(-less, way) for less, way in heap] + new
    return [way for _, way in heapq.nlargest(most, found)]


def check(proposal: Proposal, row: int, ways: Sequence[Way], width: int) -> None:
    """Tokens, parents, depths and bits of a row's tree are those of `ways`, in order."""
    assert proposal.branches is not None
    places = {(): 0, **{way: place for place, way in enumerate(ways, start=1)}}
    assert len(places) == len(ways) + 1
    tokens = [way[-1] for way in ways]
    assert proposal.tokens[row].tolist() == tokens + [-1] * (width - len(ways))
    parents, depths, bits = (line[: len(ways) + 1].tolist() for line in proposal.branches[row])
    assert parents == [0, *(places[way[:-1]] for way in ways)]
    assert depths == [0, *map(len, ways)]
    ancestors = [{places[way[:end]] for end in range(len(way) + 1)} for way in ((), *ways)]
    assert bits == [sum(1 << place for place in each) for each in ancestors]


def check_expand(rule: str, growth: Growth, tokens: int, width: int) -> int:
    """Nodes that come after another than the one offered before them, and are not the first."""
    policy, greedy, scores, _ = RULES[rule]
    limits = (width, width, max(1, width - 2))
    given = begun(policy, width, limits, greedy=greedy)
    proposal = expand(given, GrownTree(growth, tokens))
    assert (proposal.log_probs is not None) == policy.compares
    aside = 0
    for row, limit in enumerate(limits):
        ways = by_heap(row, growth, scores, width, limit)
        check(proposal, row, ways, width)
        aside += sum(way[:-1] != before for before, way in pairwise(ways))
        if proposal.log_probs is not None:
            drawn = proposal.log_probs[row, : len(ways)]
            assert drawn.argmax(dim=-1).tolist() == [way[-1] for way in ways]
            assert torch.equal(drawn.logsumexp(dim=-1), torch.zeros(len(ways)))
    return aside


GROWN = [
    (Growth(width=width, depth=depth, children=children, among=among), fewer)
    for width, depth, children in ((1, 4, None), (1, 3, 3), (2, 4, None), (2, 3, 4), (3, 4, None))
    for among in ("level", "all")
    for fewer in (0, 1, 3)
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("growth", "fewer"), GROWN, ids=str)
def test_a_tree_grows_where_the_heap_says(rule: str, growth: Growth, fewer: int) -> None:
    tokens = min(growth.most, growth.least + 4)
    aside = check_expand(rule, growth, tokens, tokens - fewer)
    assert aside or growth.each == 1


def test_trees_that_grow_among_all_are_others_than_level_by_level() -> None:
    level, every = (
        [by_heap(row, Growth(width=2, depth=4, among=among), greedily, 9, 9) for row in range(ROWS)]
        for among in ("level", "all")
    )
    assert level != every


def test_a_node_without_the_chances_of_its_parent_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    children = ops._children

    def of_itself(begun: Begun, nodes: Any, *rest: Any) -> Any:
        return children(begun, replace(nodes, sure=torch.zeros_like(nodes.sure)), *rest)

    monkeypatch.setattr(ops, "_children", of_itself)
    for among in ("level", "all"):
        growth = Growth(width=2, depth=4, children=3, among=among)
        with pytest.raises(AssertionError):
            check_expand("greedy", growth, 9, 9)


def test_the_table_finds_a_node_with_the_wrong_ancestors() -> None:
    given = begun(Coupled(), 6, (6,) * ROWS, greedy=True)
    batch = type(given).batch

    class Other(Begun):
        def batch(self, nodes: Nodes, back: int = 0) -> AttentionBatch:
            return batch(self, replace(nodes, bits=nodes.bits & ~2), back)

    other = Other(**{name: getattr(given, name) for name in Begun.__slots__})
    with pytest.raises(AssertionError):
        expand(other, GrownTree(Growth(width=2, depth=3), 6))


LISTED: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)),
    ((0,), (1,), (2,)),
    ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1)),
    ((0,), (1,), (2,), (2, 0), (2, 1), (2, 1, 0), (2, 1, 1)),
)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fewer", [0, 1, 2])
@pytest.mark.parametrize("paths", LISTED, ids=str)
def test_a_listed_tree_has_the_best_few_after_each_node(
    rule: str, paths: tuple[tuple[int, ...], ...], fewer: int
) -> None:
    policy, greedy, _, scores = RULES[rule]
    shape, width = Tree.of(paths), len(paths) - fewer
    given = begun(policy, width, (width,) * ROWS, greedy=greedy)
    proposal = grow(given, ListedTree(shape, shape.branches()))
    for row in range(ROWS):
        ways: dict[tuple[int, ...], Way] = {(): ()}  # by the choices that lead there
        for place, path in enumerate(sorted(paths)[:width], start=1):
            before = ways[path[:-1]]
            at = list(ways).index(path[:-1])
            best = scores(row, before, at).argsort(descending=True)
            ways[path] = (*before, int(best[path[-1]]))
            if proposal.log_probs is not None and TEMPERATURES[row]:
                drawn = proposal.log_probs[row, place - 1]
                assert torch.allclose(drawn, log_probs(row, before, at).to(drawn.dtype))
        check(proposal, row, list(ways.values())[1:], width)
