"""Pages of encoded rows: who waits for them, and when they come back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepweave.graph.node import OWNER
from stepweave.policies.chosen import Policies
from stepweave.policies.scheduling import DecodesFirst, RowView
from stepweave.requests import table as tables
from stepweave.requests.attachments import ENCODE, Attachment, Room
from stepweave.requests.request import Request
from stepweave.requests.table import RequestTable
from tests.requests.memory_model import limits, request, settle

LEASES = {(OWNER, OWNER): 1, (ENCODE, OWNER): 1, (OWNER, ENCODE): 1, (ENCODE, ENCODE): 1}


def image(uid: int, count: int) -> Request:
    made = request(uid, prompt=count + 4, max_tokens=3, window=1)
    made.attachments = (Attachment(2, count, b"%16d" % uid, None),)
    return made


def test_a_large_image_does_not_wait_for_ever_behind_small_ones() -> None:
    wide = limits(max_rows=8, token_budget=64, num_blocks=60)
    table = RequestTable(wide, room=Room(4, 4, 1), page_leases=LEASES)
    table.submit_all([image(100, 4)])
    settle(table, table.schedule(0))
    large = image(0, 16)  # it fills all four pages
    table.submit_all([large])
    for step in range(1, 40):
        table.submit_all([image(100 + step, 4)])
        settle(table, table.schedule(step))
    assert large.output_ids
    assert table.finished > 5


class OneByTurn(DecodesFirst):
    """Offers one prompt a step: whose turn is the longest ago."""

    def order(self, rows: Sequence[RowView]) -> Sequence[RowView]:
        return rows if rows[0].decodes else sorted(rows, key=lambda row: row.turn)[:1]


def test_who_waits_for_an_image_has_had_its_turn() -> None:
    size = limits(max_rows=4, token_budget=3, num_blocks=60)
    policies = Policies(scheduling=OneByTurn())
    table = RequestTable(size, room=Room(2, 4, 1), page_leases=LEASES, policies=policies)
    both = [image(0, 8), image(1, 8)]
    table.submit_all(both)
    for step in range(60):
        settle(table, table.schedule(step))
    assert [len(each.output_ids) for each in both] == [3, 3]


@pytest.mark.parametrize("before", [1, 200])
def test_pages_come_back_where_a_run_begins_anew_however_long_the_one_before_was(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "IDLE_WAIT_S", 0.0)
    table = RequestTable(limits(), room=Room(2, 4, 1), page_leases=LEASES)
    table.open()
    for step in range(before):
        settle(table, table.schedule(step))
    asked = image(0, 8)
    table.submit_all([asked])
    settle(table, table.schedule(before))
    assert table.encodings.pool.held
    table.leave()
    table.schedule(before + 1)
    table.resume()
    for step in range(20):
        settle(table, table.schedule(step))
    assert asked.output_ids
