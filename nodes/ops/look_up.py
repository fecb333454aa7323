"""Texts of running requests on the host, and the ways in which they may go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ...requests.batch import ScheduledRow, StepBatch
from ...sampling.suffixes import Outputs, Search, Text, ways_on
from ..data import EndedRequest, SettledRow
from .masks import MatcherTable, failure_of
from .transfer import packed


@dataclass
class _RowText:
    """The text of the request that has a request slot."""

    uid: int
    generation: int
    text: Text


@dataclass
class RowTexts:
    """The text of every live row, by request slot: what was given and settled, and no draft.

    A slot's text is replaced when its next owner comes, so there are as many as slots.
    """

    shortest: int
    _by_slot: dict[int, _RowText] = field(default_factory=dict)
    _by_uid: dict[int, _RowText] = field(default_factory=dict)

    def settle(self, settled: tuple[SettledRow, ...]) -> None:
        """Add what the step before gave its requests."""
        for each in settled:
            found = self._by_uid.get(each.uid)
            if found is not None:
                found.text.extend(each.tokens)

    def take_in(self, row: ScheduledRow) -> None:
        """Add the tokens that a row brings; a new owner of its slot begins anew."""
        if row.decodes:
            return
        found = self._by_slot.get(row.request_slot)
        if found is None or found.generation != row.generation:
            if found is not None and self._by_uid.get(found.uid) is found:
                del self._by_uid[found.uid]
            found = _RowText(row.request.uid, row.generation, Text(self.shortest))
            found.text.extend(row.prefix)
            self._by_slot[row.request_slot] = self._by_uid[found.uid] = found
        found.text.extend(row.tokens)

    def of(self, row: ScheduledRow) -> Text | None:
        """The text before what this step samples; None of a row that nobody knows."""
        found = self._by_slot.get(row.request_slot)
        return None if found is None or found.generation != row.generation else found.text


def remember(outputs: Outputs, ended: tuple[EndedRequest, ...]) -> None:
    """Keep the outputs of requests that have ended."""
    for each in ended:
        outputs.add(each.tokens, each.after)


def prepare_ways(
    batch: StepBatch,
    texts: RowTexts,
    outputs: Outputs,
    buffer: Tensor,
    search: Search,
    table: MatcherTable | None = None,
) -> Tensor | None:
    """The ways of the sampling rows `[S, C, M]`, in `buffer[max_rows, C, M]`; None where no row
    may be offered drafts.

    With a `table` of matchers, those that the rows' grammars allow, as far as they do.
    """
    for row in batch.rows:
        texts.take_in(row)
    found: Tensor | None = None
    if batch.draft_width:
        found = packed(buffer, batch.samples, search.ways, search.length)
        lines = found.numpy()
        lines[:] = -1
        for sample_index, row in enumerate(batch.sampling):
            text = texts.of(row) if row.drafts else None
            if text is None:
                continue
            for way, tokens in enumerate(_ways_of(row, text, outputs, search, table)):
                lines[sample_index, way, : len(tokens)] = tokens
    for row in batch.sampling:
        text = texts.of(row) if row.forced >= 0 else None
        if text is not None:
            text.extend((row.forced,))  # settled before, and handed on by this step
    return found


def _ways_of(
    row: ScheduledRow, text: Text, outputs: Outputs, search: Search, table: MatcherTable | None
) -> list[list[int]]:
    uid = row.request.uid
    if table is None:
        return ways_on(text, outputs, uid, search)
    if uid in table.failures:
        return []
    try:
        matcher = table.of(row)
        # A row that resumes has a token that its matcher has accepted, and its text has not.
        ahead = matcher is not None and row.forced >= 0
        if matcher is not None and ahead:
            matcher.rollback(1)
        found = ways_on(text, outputs, uid, search, matcher)
        if matcher is not None and ahead:
            matcher.accept(row.forced)
        return found
    except Exception as error:  # the boundary: one request's grammar, one request's error
        table.failures[uid] = failure_of(error)
        return []
