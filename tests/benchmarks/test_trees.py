"""The benchmark of draft trees, made small: as many drafts, equal tokens, shares of the chain."""

import pytest

from benchmarks import trees
from benchmarks.trees import ALL, Offer, Tally, listed, offers
from stepweave.nodes.tree import Tree, TreeOptions


@pytest.mark.parametrize("tokens", [4, 8, 12, 16])
def test_every_offer_of_a_budget_has_as_many_drafts(tokens: int) -> None:
    said = [str(offer) for offer in offers(tokens)]
    assert said[:2] == ["chain", "listed"]
    assert len(set(said)) == 5
    for offer in offers(tokens):
        made = TreeOptions.model_validate({"tokens": tokens, "tree": offer.tree})
        assert made.tokens == tokens
    assert len(Tree.of(listed(tokens)).parents) == tokens


def test_the_first_token_of_a_request_takes_no_step() -> None:
    tally = Tally(offered=4)
    tally.add(tokens=10, drafted=12)  # the first token, then nine in three steps
    assert tally.per_step == 3.0


def test_tokens_are_equal_and_compared_with_the_chain_of_the_same_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trees, "TEMPERATURES", (1.0,))
    pair = [Offer(3), Offer(3, {"width": 1, "depth": 2, "children": 2})]
    monkeypatch.setattr(trees, "offers", lambda tokens: pair)
    results = trees.run(1, 6, [3])["results"]
    assert {line["text"] for line in results} == {"extraction", "story", "prose", ALL}
    for line in results:
        [chain] = [
            each for each in results if (each["text"], each["offer"]) == (line["text"], "chain")
        ]
        share = line["tokens_per_step"] / chain["tokens_per_step"]
        assert line["over_chain"] == pytest.approx(share, abs=1e-3)
        assert 1 <= line["tokens_per_step"] <= 4
