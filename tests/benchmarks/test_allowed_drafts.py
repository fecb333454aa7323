"""The benchmark of drafts that a grammar allows, made small: equal tokens, counts of both ways."""

import pytest

from benchmarks import allowed_drafts
from benchmarks.allowed_drafts import KINDS, workloads


def test_tokens_are_equal_and_both_ways_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    every = workloads(1, 6)
    assert tuple(every) == KINDS
    monkeypatch.setattr(allowed_drafts, "workloads", lambda *_: {"regex": every["regex"]})
    results = allowed_drafts.run(1, 6, ["ngram"])["results"]
    assert [(each["grammar"], each["among"]) for each in results] == [
        ("regex", "any"),
        ("regex", "allowed"),
    ]
    for line in results:
        assert 0 <= line["accepted_per_token"] <= 3 * line["accepted_per_judged"]
