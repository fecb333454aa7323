"""The benchmark of draft lengths, made small: predicted periods, equal tokens, shares."""

from __future__ import annotations

import pytest

from benchmarks import draft_length
from benchmarks.draft_length import Length, against_best, among, at_first, policies, predicted
from stepweave.policies.fastest import Fastest


def test_sides_are_every_length_and_policies_that_take_the_periods() -> None:
    said = policies({1: [100.0, 110.0], 8: [150.0, 300.0]}, 2)
    assert list(said) == ["1 drafts", "2 drafts", "fastest", "by_rows", "by_acceptance"]
    options = {key: value for key, value in said["fastest"].items() if key != "kind"}
    assert Fastest(**options).rows == (1, 8)


@pytest.mark.parametrize("longest", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_all_sides_decode_the_same_and_policies_are_compared_with_the_best_length(
    longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_length, "LIMIT", 6 * longest)
    periods = [1.0 + 0.1 * drafts for drafts in range(longest)]
    sides = policies({1: periods, 2: periods}, longest)
    length = Length(warm=1, settle=12, rounds=1, engines=1 if longest == 1 else 2)
    found = draft_length.measure(2, longest, 2, length, sides)
    assert all(each["tokens_per_step"] > 1 for each in found.values())
    assert set(against_best(found)) == {"fastest", "by_rows", "by_acceptance"}
    assert set(at_first(found)) == set(against_best(found))


def test_sides_are_chosen_by_their_names() -> None:
    sides = policies({1: [100.0, 110.0]}, 2)
    assert list(among(sides, "fastest, 2 drafts")) == ["fastest", "2 drafts"]
    assert among(sides, None) == sides
    with pytest.raises(SystemExit, match="no side '3 drafts'; there are 1 drafts, 2 drafts, fast"):
        among(sides, "3 drafts,fastest")
    with pytest.raises(SystemExit, match="name a fixed length"):
        among(sides, "fastest")


def test_the_best_length_is_the_one_of_most_tokens_per_second() -> None:
    found = {
        "1 drafts": {"tokens_per_second": 10.0, "seconds": [2.0, 2.0]},
        "2 drafts": {"tokens_per_second": 20.0, "seconds": [1.0, 1.2]},
        "fastest": {"tokens_per_second": 19.0, "seconds": [1.0, 1.6]},
    }
    share = against_best(found)["fastest"]
    assert share.median == pytest.approx((1.0 + 0.75) / 2)


def test_first_runs_are_compared_with_the_length_that_was_fastest_in_them() -> None:
    found = {"1 drafts": 2.0, "2 drafts": 1.5, "fastest": 3.0}
    assert at_first({name: {"first_seconds": took} for name, took in found.items()}) == {
        "fastest": 0.5
    }


@pytest.mark.nightly
def test_periods_are_those_of_a_profile_with_each_number_of_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_length, "LIMIT", 16)
    table = predicted([1, 2], 2, 1)
    assert list(table) == [1, 2]
    assert [len(each) for each in table.values()] == [2, 2]
    assert all(us > 0 for each in table.values() for us in each)
