"""Shares of tests that take hours: each test is in one of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Share
from tests.shares import share_of


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("0/8", "there is none of number 0"),
        ("9/8", "there is none of number 9"),
        ("3", "is written as 3/8"),
        ("a/8", "is written as 3/8"),
        ("-1/8", "is written as 3/8"),
    ],
)
def test_a_share_that_there_is_not_is_refused(said: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        share_of(said)
    with pytest.raises(pytest.UsageError, match=f"--share: .*{wrong}"):
        Share(said)


@pytest.mark.parametrize("shares", [1, 3, 8])
def test_each_test_is_in_one_share(shares: int) -> None:
    every = [f"test {number}" for number in range(20)]
    found: list[str] = []
    for share in range(1, shares + 1):
        items: list[Any] = [*every]
        left_out: list[str] = []
        told = SimpleNamespace(pytest_deselected=lambda items, to=left_out: to.extend(items))
        config: Any = SimpleNamespace(hook=told)
        Share(f"{share}/{shares}").pytest_collection_modifyitems(config, items)
        assert sorted(items + left_out) == sorted(every)
        found += items
    assert sorted(found) == sorted(every)
