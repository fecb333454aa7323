"""A batch that is too long for one message reaches the other ranks in several."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave.distributed import inbox as inbox_module
from stepweave.distributed.frames import framed
from stepweave.distributed.inbox import LoggedInbox, ReplayedInbox
from stepweave.requests.params import SamplingParams
from stepweave.testing.engines import tiny_request


class Wire:
    """A log of which one rank reads what the other has written."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int, dict[str, Any]]] = []

    def append(self, entry: str, step: int, **data: Any) -> None:
        self.entries.append((entry, step, data))

    def next(self, entry: str, step: int) -> dict[str, Any]:
        found = self.entries.pop(0)
        assert found[:2] == (entry, step)
        return found[2]


@pytest.mark.parametrize(("most", "entries"), [(8 << 20, 1), (1000, 3), (1, 6)])
def test_every_rank_takes_in_the_same_in_the_same_order(
    most: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "MOST_BYTES", most)
    wire: Any = Wire()
    verdicts: Any = None
    leading = LoggedInbox(100, wire, verdicts)
    asked = [tiny_request(uid, (5,) * 120, SamplingParams(), context=200) for uid in range(6)]
    leading.open()
    leading.submit_all(asked)
    leading.cancel(3)
    taken = leading.take(7)
    assert [each.uid for each in taken.arrived] == list(range(6))
    assert len(wire.entries) == entries
    cancelled: list[tuple[int, str | None]] = []
    following = ReplayedInbox(
        100, wire, verdicts, lambda spec: asked[spec["uid"]], lambda *each: cancelled.append(each)
    )
    found = following.take(7)
    assert found.arrived == taken.arrived
    assert found.open
    assert cancelled == [(3, None)]
    leading.take(8)
    assert following.take(8).arrived == ()
    assert wire.entries == []


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(bad_words=["禁止的词语例子" * 4] * 60),
        SamplingParams(logit_bias={100_000 + each: -99.123456789 for each in range(300)}),
        SamplingParams(stop=["终止" * 120] * 16),
    ],
    ids=["bad words", "biases", "stops"],
)
def test_whatever_requests_ask_for_counts_in_what_is_sent_at_once(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "MOST_BYTES", 50_000)
    wire: Any = Wire()
    verdicts: Any = None
    leading = LoggedInbox(100, wire, verdicts)
    leading.open()
    leading.submit_all(tiny_request(uid, (5,), params) for uid in range(9))
    leading.take(0)
    sizes = [len(framed({"kind": "log", **data})) for _, _, data in wire.entries]
    assert len(sizes) > 1
    assert max(sizes) < 50_500
