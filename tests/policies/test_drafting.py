"""How many drafts a row is offered: what policies answer, and that no token depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.policies.acceptance import Coupled, Rejection
from stepweave.policies.chosen import Policies
from stepweave.policies.drafting import (
    ByAcceptance,
    ByRows,
    DraftView,
    Full,
)
from stepweave.policies.errors import PolicyError
from stepweave.policies.policy import Policy
from stepweave.policies.windows import Window
from stepweave.requests.decisions import Decisions
from stepweave.requests.params import SamplingParams
from stepweave.requests.request import Request
from stepweave.requests.window_gains import WindowGains
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_requests
from tests.policies.on_paper import K, view
from tests.policies.samples import sample


def test_full_offers_all() -> None:
    assert [Full().drafts(view(most)) for most in (1, 4)] == [1, 4]


def test_by_rows_divides_the_tokens_of_a_step() -> None:
    offered = [ByRows(tokens=16).drafts(view(rows=rows)) for rows in (1, 3, 4, 5, 8, 9, 100)]
    assert offered == [4, 4, 3, 2, 1, 1, 1]


def test_by_acceptance_offers_more_where_more_was_kept() -> None:
    policy = ByAcceptance(cost=0.2)
    offered = [policy.drafts(view(own=[Window(4, kept)] * 16)) for kept in (0, 1, 2, 4)]
    assert offered == sorted(offered)
    assert (offered[0], offered[-1]) == (1, K)


def test_by_acceptance_begins_with_many_and_looks_again_every_few_windows() -> None:
    policy = ByAcceptance(cost=0.2, windows=8, every=6)
    own = [Window(4, 0)] * 12 + [Window(4, 4)] * 24
    offered = [
        policy.drafts(DraftView(K, 1, own[max(0, seen - policy.past) : seen], (), seen))
        for seen in range(len(own))
    ]
    assert offered[:12] == [K] * 6 + [1] * 6
    assert offered[-1] == K
    changed = [seen for seen in range(1, len(own)) if offered[seen] != offered[seen - 1]]
    assert all(seen % 6 == 0 for seen in changed)


ASKED = [
    SamplingParams(max_tokens=14, ignore_eos=True, temperature=0.9 * (uid % 2), seed=uid)
    for uid in range(4)
]
ADAPTIVE = [sample("drafting", name) for name in ("by_rows", "by_acceptance", "fastest")]


def served(depth: int, policies: Policies, **more: Any) -> list[Request]:
    config = TinyConfig(
        depth=depth,
        executor="serial" if depth == 1 else "threads",
        draft_tokens=K,
        policies=policies,
        **{"method": "eagle3", **more},
    )
    requests = tiny_requests(ASKED)
    serve(tiny_engine(config), requests)
    assert [each.error for each in requests] == [None] * len(requests)
    return requests


def tokens(requests: list[Request]) -> list[list[int]]:
    return [each.output_ids for each in requests]


def counts(requests: list[Request]) -> list[tuple[int, int]]:
    return [(each.drafted, each.accepted) for each in requests]


@cache
def plain() -> list[Request]:
    """With full windows."""
    return served(1, Policies())


def check(drafting: Any, depths: Sequence[int], **more: Any) -> None:
    runs = [served(depth, Policies(drafting=drafting), **more) for depth in depths]
    for each in runs:
        assert tokens(each) == tokens(plain())
        if drafting.own:
            assert counts(each) == counts(runs[0])
    if more:
        assert sum(request.preemptions for each in runs for request in each) > 0
    drafted = sum(request.drafted for request in runs[0])
    assert drafted < sum(request.drafted for request in plain()), "windows were narrower"


@pytest.mark.parametrize("drafting", ADAPTIVE, ids=repr)
def test_tokens_are_those_of_full_windows(drafting: Any) -> None:
    check(drafting, (1, 3) if drafting.own else (3,))


@pytest.mark.nightly
@pytest.mark.parametrize("drafting", ADAPTIVE, ids=repr)
@pytest.mark.parametrize(
    ("method", "padded"),
    [
        *product(("draft_model", "eagle", "eagle3", "mtp", "medusa", "suffix"), (True,)),
        *product(("draft_model", "eagle", "eagle3", "mtp", "ngram"), (False,)),
    ],
)
def test_with_every_drafter_and_little_memory(drafting: Any, method: Any, padded: bool) -> None:
    more = {"method": method, "padded": padded}
    runs = [
        served(depth, Policies(drafting=drafting), **more, **room)
        for depth in (1, 2, 3)
        for room in ({}, {"num_blocks": 30})
    ]
    assert sum(request.preemptions for each in runs for request in each) > 0
    for each in runs:
        assert tokens(each) == tokens(plain())
        if drafting.own:
            assert counts(each) == counts(runs[0])


def test_windows_whose_text_had_ended_are_counted_as_worth_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(WindowGains, "note", lambda _gains, _drafts, tokens: noted.append(tokens))
    for depth in (1, 3):
        noted.clear()
        done = served(depth, Policies(drafting=sample("drafting", "fastest")))
        behind_first = sum(len(request.output_ids) - 1 for request in done)
        assert sum(noted) == behind_first, "each token but the first is of a window"
        assert (0 in noted) == (depth > 1), "with one step at a time no window is wasted"


def test_own_counts_are_equal_where_requests_give_way() -> None:
    check(sample("drafting", "by_acceptance"), (1, 3), num_blocks=26)


def test_an_own_policy_goes_with_any_rule() -> None:
    policies = Policies(drafting=ByAcceptance(cost=0.3), acceptance=Rejection())
    one, other = (served(depth, policies) for depth in (1, 3))
    assert tokens(one) == tokens(other)
    assert counts(one) == counts(other)


def test_a_rule_whose_tokens_would_depend_on_other_rows_is_refused() -> None:
    with pytest.raises(PolicyError, match="'by_rows': it offers a row drafts by what other rows"):
        Policies(drafting=ByRows(), acceptance=Rejection())
    Policies(drafting=ByRows(), acceptance=Coupled())
    asked = {"policies.drafting": "by_rows", "policies.acceptance": "rejection"}
    with pytest.raises(ConfigError, match=r"policies\.drafting 'by_rows': it offers a row drafts"):
        load_config("async_eagle", asked)


class Greedy(Policy):
    """Offers more than there are."""

    own: bool = True
    past: int = 0

    def drafts(self, row: DraftView) -> int:
        return row.most + 1


class Forgetful(Greedy):
    """Forgets to return what it came to."""

    def drafts(self, row: DraftView) -> int:
        return None  # type: ignore[return-value]


def test_a_policy_that_offers_no_number_is_named() -> None:
    decisions = Decisions(Policies(drafting=Forgetful()))
    with pytest.raises(PolicyError, match=r"'Forgetful': it offers a row None drafts; .* 1 to 2"):
        decisions.withheld(view(most=2))


def test_a_policy_that_offers_more_than_there_are_is_named() -> None:
    decisions = Decisions(Policies(drafting=Greedy()))
    with pytest.raises(PolicyError, match=r"'Greedy': it offers a row 3 drafts; .* from 1 to 2"):
        decisions.withheld(view(most=2))
