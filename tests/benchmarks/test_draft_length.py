"""The benchmark of draft lengths, made small: periods of plans, equal tokens, shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import draft_length
from benchmarks.draft_length import against_best, policies, predicted
from stepweave.policies.drafting import Fastest

COSTS = """\
version: 1
basis: assumed
describes: a forward pass that takes longer the more tokens it computes
ops: {forward.device: {tokens: {1: 5000, 100: 30000}}}
"""


def test_periods_are_those_of_plans_with_given_costs_and_policies_take_them(
    tmp_path: Path,
) -> None:
    costs = tmp_path / "costs.yaml"
    costs.write_text(COSTS)
    table = predicted({1: costs, 2: costs}, (1, 8))
    assert list(table) == [1, 8]
    assert all(len(each) == 2 for each in table.values())
    assert table[8][1] > table[8][0] > table[1][0] > 0, "more rows and wider windows take longer"
    said = policies(table, 2)
    assert list(said) == ["1 drafts", "2 drafts", "fastest", "by_rows", "by_acceptance"]
    options = {key: value for key, value in said["fastest"].items() if key != "kind"}
    assert Fastest(**options).rows == (1, 8)


@pytest.mark.parametrize("longest", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_all_sides_decode_the_same_and_policies_are_compared_with_the_best_length(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_length, "LIMIT", 6 * longest)
    periods = [1.0 + 0.1 * drafts for drafts in range(longest)]
    found = draft_length.measure(2, longest, 2, 1, {1: periods, 2: periods})
    assert all(each["tokens_per_step"] > 1 for each in found.values())
    assert set(against_best(found)) == {"fastest", "by_rows", "by_acceptance"}


def test_the_best_length_is_the_one_of_most_tokens_per_second() -> None:
    found = {
        "1 drafts": {"tokens_per_second": 10.0, "seconds": [2.0, 2.0]},
        "2 drafts": {"tokens_per_second": 20.0, "seconds": [1.0, 1.2]},
        "fastest": {"tokens_per_second": 19.0, "seconds": [1.0, 1.6]},
    }
    share = against_best(found)["fastest"]
    assert share.median == pytest.approx((1.0 + 0.75) / 2)


@pytest.mark.nightly
def test_a_length_is_profiled_time_after_time(tmp_path: Path) -> None:
    costs = [draft_length.profiled(1, [1], tmp_path) for _ in range(2)]
    assert costs[0] == costs[1]
    assert "forward" in costs[0].read_text()
