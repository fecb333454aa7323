"""The benchmark of drafts that a grammar allows, made small: equal tokens, counts of both ways."""

from benchmarks import allowed_drafts


def test_tokens_are_equal_and_both_ways_are_counted() -> None:
    results = allowed_drafts.run(1, 10, ["ngram"])["results"]
    said = [(each["grammar"], each["among"]) for each in results]
    assert said == [(name, among) for among in ("any", "allowed") for name in allowed_drafts.KINDS]
    for line in results:
        assert 0 <= line["accepted_per_token"] <= line["accepted_per_judged"] * 3
