"""Draft trees under each rule that judges them: paths, tokens, distributions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.nodes.tree import Tree
from stepweave.policies.acceptance import Coupled, Rejection, Typical
from stepweave.sampling.draw import draw
from stepweave.sampling.noise import Purpose, gumbel, of_window
from stepweave.sampling.trees import drafted, path_to, with_ancestors
from stepweave.sampling.windows import Verified, Windows
from tests.policies.test_acceptance import chi_square, distributions, limit
from tests.sampling.test_no_sync import no_sync

PATHS = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
TREE = Tree.of(PATHS)  # places: 1 [0], 2 [0, 0], 3 [0, 0, 0], 4 [0, 1], 5 [1], 6 [1, 0], 7 [2]


def branches_of(tree: Tree, rows: int) -> Tensor:
    return tree.branches().expand(rows, -1, -1)


def windows_of(tree: Tree, target: Tensor, drafts: Tensor, **more: Any) -> Windows:
    rows = len(drafts)
    given: dict[str, Any] = {
        "valid": torch.zeros(rows, dtype=torch.int64),  # of trees it says nothing
        "seeds": torch.arange(rows) * 7919 + 13,
        "positions": torch.full((rows,), 5),
        "greedy": torch.zeros(rows, dtype=torch.bool),
        "branches": branches_of(tree, rows),
    }
    return Windows(target, drafts, **{**given, **more})


def settled(verified: Verified, row: int = 0) -> tuple[list[int], list[int]]:
    """The tokens of a row, and the places at which they were judged."""
    assert verified.paths is not None
    count = int(verified.counts[row])
    assert verified.tokens[row, count:].tolist() == [-1] * (verified.tokens.shape[1] - count)
    return verified.tokens[row, :count].tolist(), verified.paths[row, :count].tolist()


def test_nodes_are_listed_by_their_way_from_the_root() -> None:
    assert TREE.parents == (0, 1, 2, 1, 0, 5, 0)
    assert TREE.depths == (0, 1, 2, 3, 2, 1, 2, 1)
    assert TREE.children[:2] == ((1, 5, 7), (2, 4))
    bits = TREE.branches()[2].tolist()
    assert [f"{each:b}" for each in bits[:5]] == ["1", "11", "111", "1111", "10011"]
    assert TREE.first(4).parents == (0, 1, 2, 1)


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ([(0,), (1, 0)], r"\[1, 0\] is in the tree, but not \[1\]"),
        ([(1,)], r"\[1\] is in the tree, but not \[0\]"),
        ([(0,), (0,)], "twice"),
        ([()], "no way from the root"),
        ([(-1,)], "no way from the root"),
    ],
)
def test_what_is_no_tree_is_refused(paths: list[tuple[int, ...]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Tree.of(paths)


def best_is(tokens: list[int], vocab: int = 12) -> Tensor:
    """`[1, W, V]`: scores whose best token at each place is that of `tokens`."""
    return torch.nn.functional.one_hot(torch.tensor([tokens]), vocab).float().log_softmax(-1)


@pytest.mark.parametrize("rule", [Coupled(), Rejection(), Typical()])
@pytest.mark.parametrize(
    ("drafts", "best", "tokens", "places"),
    [
        # Drafts at places 1 to 7; the best token at places 0 to 7.
        ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 0, 0, 0, 0], [1, 2, 3, 9], [0, 1, 2, 3]),
        ([1, 2, 3, 4, 5, 6, 7], [1, 4, 3, 9, 8, 0, 0, 0], [1, 4, 8], [0, 1, 4]),
        ([1, 2, 3, 4, 5, 6, 7], [5, 2, 3, 9, 8, 6, 10, 0], [5, 6, 10], [0, 5, 6]),
        ([1, 2, 3, 4, 5, 6, 7], [7, 2, 3, 9, 8, 6, 10, 11], [7, 11], [0, 7]),
        ([1, 2, 3, 4, 5, 6, 7], [8, 2, 3, 9, 8, 6, 10, 11], [8], [0]),
        # A draft that is none ends its own branch, and what follows it is not reached.
        ([1, -1, 3, 4, 5, 6, 7], [1, 4, 3, 9, 8, 0, 0, 0], [1, 4, 8], [0, 1, 4]),
        ([-1, 2, 3, 4, 5, 6, 7], [5, 2, 3, 9, 8, 6, 10, 0], [5, 6, 10], [0, 5, 6]),
        ([1, -1, 3, 4, 5, 99, 7], [1, 2, 3, 9, 8, 0, 0, 0], [1, 2], [0, 1]),
        ([-1] * 7, [3, 2, 3, 9, 8, 0, 0, 0], [3], [0]),
    ],
)
def test_greedy_rows_keep_the_path_of_best_tokens(
    rule: Any, drafts: list[int], best: list[int], tokens: list[int], places: list[int]
) -> None:
    given = windows_of(TREE, best_is(best), torch.tensor([drafts]))
    greedy = torch.ones(1, dtype=torch.bool)
    for any_random in (False, True):
        mixed = Windows(
            given.target,
            given.drafts,
            given.valid,
            given.seeds,
            given.positions,
            greedy,
            any_random=any_random,
            branches=given.branches,
        )
        with no_sync():
            verified = rule.verify(mixed)
        assert settled(verified) == (tokens, places)


def coupled_by_hand(windows: Windows, tree: Tree, row: int) -> tuple[list[int], list[int]]:
    """Walk down while a child is the token that decoding without drafts draws."""
    place, tokens, places = 0, [], [0]
    while True:
        token = int(
            draw(
                windows.target[row : row + 1, place],
                windows.seeds[row : row + 1],
                windows.positions[row : row + 1] + tree.depths[place],
                windows.greedy[row : row + 1],
                Purpose.TARGET,
            )
        )
        tokens.append(token)
        found = [each for each in tree.children[place] if windows.drafts[row, each - 1] == token]
        if not found:
            return tokens, places
        place = found[0]
        places.append(place)


def test_coupled_tokens_are_those_of_a_walk_with_the_noise_of_each_position() -> None:
    rows, vocab = 200, 5
    target = distributions(rows, len(PATHS) + 1, vocab)
    seeds, at = torch.arange(rows) * 31 + 2, torch.full((rows,), 5)
    q = distributions(len(PATHS) + 1, vocab, seed=3)
    drafts = drawn_children(q, seeds, TREE, at, drawn=True)
    windows = windows_of(TREE, target, drafts)
    verified = Coupled().verify(windows)
    lengths = set()
    for row in range(rows):
        assert settled(verified, row) == coupled_by_hand(windows, TREE, row)
        lengths.add(int(verified.counts[row]))
    assert lengths == {1, 2, 3, 4}


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("name", ["coupled", "rejection", "typical"])
def test_a_tree_without_side_branches_is_a_chain(name: str, drawn: bool) -> None:
    rule: Any = {"coupled": Coupled(), "rejection": Rejection(), "typical": Typical()}[name]
    rows, vocab, k = 300, 4, 3
    tree = Tree.of([(0,), (0, 0), (0, 0, 0)])
    target, q = distributions(rows, k + 1, vocab), distributions(rows, k, vocab, seed=1)
    drafts = torch.randint(0, vocab, (rows, k), generator=torch.Generator().manual_seed(4))
    more = {"draft_log_probs": q if drawn else None}
    whole = {**more, "valid": torch.full((rows,), k)}
    chain = rule.verify(windows_of(tree, target, drafts, **whole, branches=None))
    found = rule.verify(windows_of(tree, target, drafts, **more))
    assert torch.equal(found.tokens, chain.tokens)
    assert torch.equal(found.counts, chain.counts)


def drawn_children(
    q: Tensor, seeds: Tensor, tree: Tree, positions: Tensor, *, drawn: bool
) -> Tensor:
    """`[R, k]`: children of each place, draws without replacement from `q[W, V]`, or its best."""
    drafts = torch.zeros(len(seeds), len(tree.parents), dtype=torch.int64)
    for place, children in enumerate(tree.children):
        if not children:
            continue
        scores = q[place].expand(len(seeds), -1)
        if drawn:
            purpose = of_window(Purpose.DRAFT, place)
            scores = scores + gumbel(seeds, positions, purpose, q.shape[1])
        best = scores.topk(len(children), dim=-1).indices
        drafts[:, [child - 1 for child in children]] = best
    return drafts


def check_distribution(rows: int, *, drawn: bool) -> None:
    """The first two tokens of a tree of width 3 and 2 are distributed as the target's."""
    vocab = 5
    tree = Tree.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (2, 0)])
    seeds, positions = torch.arange(rows) * 104729 + 1, torch.full((rows,), 3)
    p = distributions(vocab + 1, vocab, seed=2)  # after no token, and after each
    q = distributions(len(tree.parents) + 1, vocab, seed=5)
    drafts = drawn_children(q, seeds, tree, positions, drawn=drawn)
    after = torch.cat([torch.full((rows, 1), -1), drafts], dim=1) + 1
    last = torch.tensor(tree.depths) == 2
    target = p[torch.where(last, 0, after)]  # behind the second draft it is of no account here
    more = {}
    if drawn:
        more["draft_log_probs"] = q[torch.tensor(tree.parents)].expand(rows, -1, -1)
    windows = windows_of(tree, target, drafts, seeds=seeds, positions=positions, **more)
    verified = Rejection().verify(windows)
    first = verified.tokens[:, 0]
    assert chi_square(torch.bincount(first, minlength=vocab), rows * p[0].exp()) < limit(vocab)
    again = verified.counts >= 2
    counts = torch.bincount(first[again] * vocab + verified.tokens[again, 1], minlength=vocab**2)
    given = torch.bincount(first[again], minlength=vocab)[:, None] * p[1:].exp()
    assert chi_square(counts.view(vocab, vocab), given) < limit(vocab * (vocab - 1) + 1)
    kept = (verified.counts - 1).double().mean()
    alone = torch.minimum(p[0].exp(), q[0].exp()).sum()
    assert kept > (alone if drawn else p[0].exp()[q[0].argmax()])  # siblings are of use


@pytest.mark.parametrize("drawn", [True, False])
def test_rejection_over_a_tree_follows_the_target(drawn: bool) -> None:
    check_distribution(20_000, drawn=drawn)


@pytest.mark.nightly
@pytest.mark.parametrize("drawn", [True, False])
def test_rejection_over_a_tree_follows_the_target_in_many_samples(drawn: bool) -> None:
    check_distribution(120_000, drawn=drawn)


def test_a_sibling_judged_by_the_target_itself_would_show() -> None:
    """The test above would find a rule that forgets that an elder sibling was refused."""
    rows, vocab = 20_000, 5
    p, q = distributions(1, vocab, seed=2)[0], distributions(1, vocab, seed=5)[0]
    tree = Tree.of([(0,), (1,)])
    seeds, positions = torch.arange(rows) * 104729 + 1, torch.full((rows,), 3)
    drafts = drawn_children(q.expand(3, -1), seeds, tree, positions, drawn=True)
    tokens = draw(
        p.expand(rows, -1), seeds, positions, torch.zeros(rows, dtype=torch.bool), Purpose.BONUS
    )
    u = torch.rand(2, rows, generator=torch.Generator().manual_seed(0))
    for index in (1, 0):
        x = drafts[:, index]
        tokens = torch.where(u[index] * q[x].exp() < p[x].exp(), x, tokens)
    assert chi_square(torch.bincount(tokens, minlength=vocab), rows * p.exp()) > 10 * limit(vocab)


def test_a_sole_choice_that_is_refused_leaves_the_others() -> None:
    p = torch.tensor([0.0, -math.inf, -math.inf]).expand(1, 3, 3)
    windows = windows_of(Tree.of([(0,), (1,)]), p, torch.tensor([[1, 2]]))
    assert settled(Rejection().verify(windows)) == ([0], [0])


def test_drafts_are_counted_that_come_after_such_only() -> None:
    branches = branches_of(TREE, 2)
    drafts = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [-1, 2, 3, 4, 5, 6, 70]])
    assert drafted(drafts, branches, 10).tolist() == [7, 2]
    allowed = torch.ones(2, 7, dtype=torch.bool)
    allowed[0, 1] = False  # place 2, and so place 3
    assert drafted(drafts, branches, 10, allowed).tolist() == [5, 2]


def test_a_place_has_the_text_and_the_drafts_before_it() -> None:
    past = torch.tensor(
        [[10, 11, 12, 77, 77]]
    )  # what stands behind the root is of an earlier owner
    drafts = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    text = with_ancestors(past, drafts, branches_of(TREE, 1), torch.tensor([2]))
    assert text[0, 3, :6].tolist() == [10, 11, 12, 1, 2, 3]
    assert text[0, 4, :5].tolist() == [10, 11, 12, 1, 4]
    assert text[0, 6, :5].tolist() == [10, 11, 12, 5, 6]
    assert text[0, 0, :3].tolist() == [10, 11, 12]
    assert path_to(torch.tensor([4]), branches_of(TREE, 1))[0, :3].tolist() == [0, 1, 4]
