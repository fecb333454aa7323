"""Ways in which texts go on on the host, where a grammar says what may follow."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepweave.nodes.ops.look_up import RowTexts, prepare_ways
from stepweave.nodes.ops.masks import MatcherTable
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.sampling.suffixes import Outputs, Search
from tests.nodes.steps import chunk, some

PERIOD = [5, 6, 7, 8]
SEARCH = Search(longest=8, places=8, ways=2, length=3)


@dataclass
class Repeats:
    """A matcher of a language with one text: the period, again and again. `at`: tokens so far."""

    at: int

    def accept(self, token: int) -> bool:
        right = token == PERIOD[self.at % 4]
        self.at += right
        return right

    def rollback(self, count: int) -> None:
        self.at -= count


def ways(row: ScheduledRow, matcher: Repeats, texts: RowTexts) -> list[int]:
    """The first way that the row is offered."""
    table = MatcherTable(matchers={row.request.uid: matcher})  # type: ignore[dict-item]
    buffer = torch.zeros(4, SEARCH.ways, SEARCH.length, dtype=torch.int64)
    batch, outputs = StepBatch(0, (row,)), Outputs(100, 1)
    found: list[int] = some(prepare_ways(batch, texts, outputs, buffer, SEARCH, table))[
        0, 0
    ].tolist()
    assert table.failures == {}
    return found


def test_a_row_that_resumes_is_looked_up_before_the_token_that_its_matcher_knows() -> None:
    """Its newest token is settled, so the matcher has accepted it; a way begins with that token."""
    text, matcher, texts = (PERIOD * 3)[:10], Repeats(11), RowTexts(shortest=1)
    structured = {"structured": True}
    resumed = chunk(0, text, forced=7, params=structured)
    assert ways(resumed, matcher, texts) == [7, 8, 5]
    assert matcher.at == 11, "it stands where it stood"
    assert list(some(texts.of(resumed)).tokens) == [*text, 7], "which the step hands on"


def test_a_row_whose_token_is_yet_to_be_sampled_is_looked_up_where_its_matcher_stands() -> None:
    row = chunk(0, (PERIOD * 3)[:10], params={"structured": True})
    matcher = Repeats(10)
    assert ways(row, matcher, RowTexts(shortest=1)) == [7, 8, 5]
    assert matcher.at == 10
    other = Repeats(11)
    assert ways(row, other, RowTexts(shortest=1)) == [-1, -1, -1], "no place goes on so"
