"""How many nodes of a draft tree a row is offered: as many as trying all numbers says is best."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

import pytest

from stepweave.nodes.ops.settling import window_of
from stepweave.nodes.tree import MOST_NODES, Growth, Tree
from stepweave.policies.chosen import Policies
from stepweave.policies.drafting import ByAcceptance, DraftView
from stepweave.policies.fastest import LONGEST, Fastest
from stepweave.policies.policy import Policy
from stepweave.policies.windows import Window, shares
from stepweave.requests.params import SamplingParams
from stepweave.requests.request import Request
from stepweave.requests.step_times import StepTimes
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_requests
from tests.nodes.steps import decoding
from tests.policies.on_paper import of_steps
from tests.policies.samples import sample

LISTED = Tree.of([(0,), (0, 0), (0, 0, 0), (0, 0, 1), (0, 1), (0, 1, 0), (1,), (1, 0), (2,)])
K, WINDOWS = len(LISTED.parents), 300


class Drawn(NamedTuple):
    """A window as the target draws it."""

    parents: tuple[int, ...]  # of the places 1 …, place by place
    goes_on: dict[int, int]  # by place, and 0 for the root: the child that the target draws there

    def kept_with(self, drafts: int) -> list[int]:
        """The places that are kept of a tree of the first `drafts` nodes, by walking down it."""
        here, found = 0, list[int]()
        while (here := self.goes_on.get(here, drafts + 1)) <= drafts:
            found.append(here)
        return found


def listed(draw: random.Random, chances: Sequence[float]) -> Drawn:
    """`chances`: by place less one, how often a node is what comes after its parent."""
    goes_on = {}
    for place, children in enumerate(LISTED.children):
        drawn, left = draw.random(), 0.0
        for child in children:
            left += chances[child - 1]
            if drawn < left:
                goes_on[place] = child
                break
    return Drawn(LISTED.parents, goes_on)


def grown(draw: random.Random, sure: float, nodes: int = 16) -> Drawn:
    """A tree of the likeliest ways: each node's best token has a chance about `sure`."""
    open_, parents, goes_on = [(1.0, 0, sure)], list[int](), {}
    waiting: list[tuple[float, int, bool]] = []
    here = 0
    while len(parents) < nodes:
        way, _, chance = open_.pop()
        best = min(0.98, max(0.3, draw.gauss(chance, 0.1)))
        drawn, left = draw.random(), 0.0
        for likely in (best, (1 - best) * 0.6, (1 - best) * 0.2):
            waiting.append((way * likely, here, left <= drawn < left + likely))
            left += likely
        waiting.sort(key=lambda each: each[0])
        way, parent, is_drawn = waiting.pop()
        parents.append(parent)
        here = len(parents)
        if is_drawn:
            goes_on[parent] = here
        open_.append((way, here, sure))
    return Drawn(tuple(parents), goes_on)


def settled(drawn: Drawn, offered: int) -> Window:
    path = drawn.kept_with(offered)
    return Window(offered, len(path), tuple(path))


def static_windows(draw: random.Random) -> list[Drawn]:
    chances = [0.0] * K
    for children in LISTED.children:
        left = 1.0
        for child in children:
            chances[child - 1] = left * draw.uniform(0.4, 0.9)
            left -= chances[child - 1]
    return [listed(draw, chances) for _ in range(WINDOWS)]


def grown_windows(draw: random.Random) -> list[Drawn]:
    sure = draw.uniform(0.45, 0.9)
    return [grown(draw, sure) for _ in range(WINDOWS)]


MADE = {"static": static_windows, "grown": grown_windows}


def by_trying(windows: Sequence[Drawn], periods: Sequence[float]) -> list[float]:
    """Tokens per time with 1, 2, … drafts, each number tried on every window."""
    return [
        mean(1 + len(each.kept_with(drafts)) for each in windows) / period
        for drafts, period in enumerate(periods, start=1)
    ]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_offered_is_as_good_as_the_best_number_of_nodes(made: str, seed: int) -> None:
    draw = random.Random(seed)
    windows = MADE[made](draw)
    most = len(windows[0].parents)
    seen = [settled(each, most) for each in windows]
    found = shares(seen, most)
    for drafts in range(1, most + 1):
        kept = mean(len(each.kept_with(drafts)) for each in windows)
        assert sum(found[:drafts]) == pytest.approx(kept, abs=0.02)
    for cost in (0.02, 0.1, 0.3):
        periods = [1 + cost * drafts for drafts in range(1, most + 1)]
        rates = by_trying(windows, periods)
        own = ByAcceptance(cost=cost, windows=len(seen), every=1)
        all_ = Fastest(periods_us=(tuple(periods),))
        offered = (
            own.drafts(DraftView(most, 1, seen, (), len(seen))),
            all_.drafts(DraftView(most, 1, (), seen)),
        )
        assert all(rates[drafts - 1] > 0.995 * max(rates) for drafts in offered)


def test_a_tree_is_not_read_as_a_chain() -> None:
    """Sixteen nodes on ways of eight: of a chain, no ninth draft would ever be kept."""
    windows = [Window(16, 8, (1, 2, 3, 5, 8, 11, 13, 16))] * 40
    cheap = ByAcceptance(cost=0.01)
    assert cheap.drafts(DraftView(16, 1, windows, (), 40)) == 16
    as_chains = [window._replace(path=None) for window in windows]
    assert cheap.drafts(DraftView(16, 1, as_chains, (), 40)) == 8


def test_a_node_is_judged_by_the_windows_that_had_it() -> None:
    wide, narrow = Window(3, 2, (1, 3)), Window(1, 1, (1,))
    assert shares([wide] * 9 + [narrow] * 90, 3) == pytest.approx(
        [99.8 / 100, 0.8 * 0.998 / 10, (9 + 0.8 * 0.0798) / 10], abs=1e-3
    )
    none = Window(0, 0, ())
    assert shares([none] * 50 + [wide], 3) == shares([wide], 3), "no draft, nothing learned"


def test_nothing_is_known_of_a_tree_but_what_is_believed_of_a_chain() -> None:
    assert shares([Window(0, 0, ())], 5) == pytest.approx(shares([], 5))


def test_a_tree_may_be_as_large_as_a_policy_offers() -> None:
    assert LONGEST == MOST_NODES
    all_kept = [Window(LONGEST, LONGEST, tuple(range(1, LONGEST + 1)))] * 99
    assert Fastest().drafts(DraftView(LONGEST, 1, (), all_kept)) == LONGEST


@pytest.mark.parametrize("made", MADE)
def test_by_acceptance_keeps_near_the_best_number_by_what_it_offered_itself(made: str) -> None:
    reached = [by_itself(MADE[made](random.Random(seed))) for seed in range(8)]
    assert mean(reached) > 0.95
    assert min(reached) > 0.85


def by_itself(windows: Sequence[Drawn]) -> float:
    """Tokens per time as a share of those of the best number, by one row with these windows."""
    most, policy, seen = len(windows[0].parents), ByAcceptance(cost=0.1), list[Window]()
    spent = gained = 0.0
    for window in windows:
        own = seen[-policy.past :]
        drafts = policy.drafts(DraftView(most, 1, own, (), len(seen)))
        seen.append(settled(window, drafts))
        spent, gained = spent + 1 + 0.1 * drafts, gained + 1 + seen[-1].kept
    rates = by_trying(windows, [1 + 0.1 * drafts for drafts in range(1, most + 1)])
    return gained / spent / max(rates)


def test_fastest_keeps_near_the_best_number_though_predictions_are_wrong() -> None:
    """Steps on paper, whose times are known to the policy by use only."""
    windows = grown_windows(random.Random(1)) * 9
    takes = [1 + 0.06 * drafts for drafts in range(1, 17)]
    policy, seen = Fastest(periods_us=(tuple(1 + 0.001 * k for k in range(16)),)), deque[Window]()
    now, offered, spent, gained = 0.0, 16, 0.0, 0
    times = StepTimes(clock=lambda: now)
    for step, window in enumerate(windows):
        times.scheduled([decoding(0, offered + 1)])
        now += takes[offered - 1]
        times.settled([decoding(0, offered + 1)])
        seen.append(settled(window, offered))
        if step >= 1200:
            spent, gained = spent + takes[offered - 1], gained + 1 + seen[-1].kept
        recent = [*seen][-policy.past :]
        view = DraftView(16, 1, (), recent, **of_steps(times, 1))
        offered = policy.drafts(view)
    assert gained / spent > 0.95 * max(by_trying(windows, takes))


# --- what a step tells


def test_the_window_of_a_row_has_the_places_that_were_kept_and_all_that_it_was_offered() -> None:
    row = decoding(0, 6)
    assert window_of(row, drafted=4, kept=2, path=[0, 2, 5, 9, 9, 9]) == Window(5, 2, (2, 5))
    assert window_of(row, drafted=0, kept=0, path=[0, 0, 0, 0, 0, 0]) == Window(0, 0, ())
    assert window_of(row, drafted=4, kept=2) == Window(4, 2), "of a chain what was judged"


GROWN = Growth(width=2, depth=8, children=3, among="all")
TREES: dict[str, Any] = {
    "grown": {"tree": GROWN, "draft_tokens": 16},  # that of `async_tree`
    "listed": {"tree": ((0,), (0, 0), (1,), (1, 0), (2,), (3,)), "draft_tokens": 6},
}
ASKED = [
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.9 * (uid % 2), seed=uid)
    for uid in range(4)
]


class Always(Policy):
    """So many drafts in each window."""

    count: int
    own: bool = True
    past: int = 9

    def drafts(self, row: DraftView) -> int:
        return min(row.most, self.count)


def served(
    drafting: Any = None,
    *,
    tree: str = "grown",
    depth: int = 1,
    asked: Sequence[SamplingParams] = ASKED,
    **more: Any,
) -> list[Request]:
    policies = Policies() if drafting is None else Policies(drafting=drafting)
    config = TinyConfig(
        depth=depth,
        executor="serial" if depth == 1 else "threads",
        token_budget=96,
        policies=policies,
        **{"method": "eagle3", **TREES[tree], **more},
    )
    requests = tiny_requests(asked)
    serve(tiny_engine(config), requests)
    assert [each.error for each in requests] == [None] * len(requests)
    return requests


@cache
def without_drafts() -> list[list[int]]:
    requests = tiny_requests(ASKED)
    return serve(tiny_engine(TinyConfig()), requests)


@pytest.mark.parametrize("tree", TREES)
def test_the_path_in_the_first_nodes_is_what_a_row_with_fewer_drafts_keeps(tree: str) -> None:
    most, asked = TREES[tree]["draft_tokens"], [replace(each, max_tokens=16) for each in ASKED]
    requests = served(Always(count=most), tree=tree, asked=asked)
    paths = [window.path or () for each in requests for window in each.windows]
    assert any(path != tuple(range(1, len(path) + 1)) for path in paths), "no tree is a chain"
    whole = [each.windows[0] for each in requests]
    assert {window.judged for window in whole} == {most}
    for count in (1, most // 2):
        requests = served(Always(count=count), tree=tree, asked=asked)
        found = [each.windows[0] for each in requests]
        assert [window.judged for window in found] == [count] * len(found)
        assert [window.path for window in found] == [
            tuple(place for place in window.path or () if place <= count) for window in whole
        ]


@pytest.mark.parametrize("tree", TREES)
def test_windows_add_up_to_the_texts(tree: str) -> None:
    """Also where a text ends within one: what lies behind its end was worth nothing."""
    found: list[Request] = []
    for most in range(18, 21):
        asked = [replace(each, max_tokens=most) for each in ASKED]
        found += served(Always(count=TREES[tree]["draft_tokens"]), tree=tree, asked=asked)
    for each in found:
        assert len(each.output_ids) == 1 + sum(1 + window.kept for window in each.windows)
    assert any(each.accepted > sum(window.kept for window in each.windows) for each in found)


def check(drafting: Any, depths: Sequence[int], **more: Any) -> list[Request]:
    """Tokens are those without drafts; the requests at the first depth."""
    runs = [served(drafting, depth=depth, **more) for depth in depths]
    for requests in runs:
        assert [each.output_ids for each in requests] == without_drafts()
        if drafting.own:
            counts = [
                [(each.drafted, each.accepted) for each in run] for run in (requests, runs[0])
            ]
            assert counts[0] == counts[1]
    return runs[0]


ADAPTIVE = [
    sample("drafting", "by_rows"),
    ByAcceptance(cost=0.1),
    Fastest(periods_us=(tuple(1 + 0.3 * drafts for drafts in range(16)),)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("drafting", ADAPTIVE, ids=lambda policy: type(policy).__name__)
def test_tokens_of_trees_that_adapt_are_those_of_the_plain_loop(drafting: Any) -> None:
    found = check(drafting, (1, 3) if drafting.own else (3,))
    drafted = sum(each.drafted for each in found)
    assert 0 < drafted < sum(each.drafted for each in served())
    assert sum(each.accepted for each in found) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("drafting", ADAPTIVE, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize(
    ("method", "tree"),
    [*product(("eagle", "eagle3", "mtp"), TREES), ("medusa", "listed")],
)
def test_with_every_drafter_of_trees_and_little_memory(
    drafting: Any, method: Any, tree: str
) -> None:
    for room in ({}, {"num_blocks": 40}):
        check(drafting, (1, 2, 3), method=method, tree=tree, **room)


@pytest.mark.nightly
@pytest.mark.parametrize("tree", TREES)
def test_tokens_under_a_grammar_are_those_of_the_plain_loop(tree: str) -> None:
    """Drafts that break a grammar are places of the tree, too, and no path goes through them."""
    asked = [
        replace(each, structured_outputs={"regex": "[a-z ]{4,20}"}, ignore_eos=False)
        for each in ASKED
    ]
    plain = tiny_requests(asked)
    tokens = serve(tiny_engine(TinyConfig(structured=True)), plain)
    for depth in (1, 3):
        found = served(ByAcceptance(cost=0.1), tree=tree, depth=depth, asked=asked, structured=True)
        assert [each.output_ids for each in found] == tokens
        assert sum(each.accepted for each in found) > 0
        windows = [window for each in found for window in each.windows]
        assert all(window.kept == len(window.path or ()) for window in windows)
        assert all(place <= window.judged for window in windows for place in window.path or ())
