"""An open table waits for what is to come; whatever happens wakes it."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stepweave.requests import inbox as inboxes
from stepweave.requests import table as tables
from stepweave.requests.request import RequestError
from stepweave.requests.table import RequestTable
from tests.requests.memory_model import limits, request, settle

LONG_S = 20.0
"""An idle wait that no test sits out."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "IDLE_WAIT_S", LONG_S)


@contextmanager
def soon(act: Callable[[], object]) -> Iterator[None]:
    """Do it from another thread, a moment later; what is waiting for it takes no `LONG_S`."""
    timer = threading.Timer(0.05, act)
    began = time.monotonic()
    timer.start()
    try:
        yield
        waited = time.monotonic() - began
    finally:
        timer.join()
    assert 0.04 < waited < LONG_S / 2


@pytest.mark.usefixtures("patient")
def test_an_open_table_waits_for_a_request_and_serves_it_in_the_same_step() -> None:
    table = RequestTable(limits())
    table.open()
    with soon(lambda: table.submit(request(0))):
        batch = table.schedule(0)
    assert [row.request.uid for row in batch.rows] == [0]
    assert not table.idle


@pytest.mark.usefixtures("patient")
def test_the_last_to_close_ends_the_wait_and_the_run() -> None:
    table = RequestTable(limits())
    table.open()
    table.open()
    table.close()
    assert not table.idle
    with soon(table.close):
        assert not table.schedule(0)
    assert table.idle
    with pytest.raises(RuntimeError, match="more often than opened"):
        table.close()


@pytest.mark.usefixtures("patient")
def test_a_cancellation_wakes_it_too() -> None:
    table = RequestTable(limits())
    table.open()
    with soon(lambda: table.cancel(0)):
        assert not table.schedule(0)


@pytest.mark.usefixtures("patient")
def test_with_work_in_flight_or_waiting_an_open_table_never_waits() -> None:
    table = RequestTable(limits(draft_tokens=0))
    table.open()
    asked = request(0, max_tokens=1, window=1)
    table.submit(asked)
    began = time.monotonic()
    batch = table.schedule(0)
    assert batch
    assert not table.schedule(1)  # its one token is in flight
    table.cancel(0)
    assert not table.schedule(2)  # it has ended, but its step has not
    settle(table, batch)
    assert time.monotonic() - began < LONG_S / 2
    with soon(table.close):
        assert not table.schedule(3)


def test_it_does_not_wait_for_ever_so_that_who_stops_the_run_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "IDLE_WAIT_S", 0.05)
    table = RequestTable(limits())
    table.open()
    began = time.monotonic()
    assert not table.schedule(0)
    assert 0.04 < time.monotonic() - began < 5
    assert not table.idle


@pytest.mark.usefixtures("patient")
def test_a_table_that_nobody_opened_does_not_wait() -> None:
    table = RequestTable(limits())
    began = time.monotonic()
    assert not table.schedule(0)
    assert time.monotonic() - began < LONG_S / 2
    assert table.idle
    table.submit(request(0))
    assert not table.idle  # it is for the next run, if this one has ended


@pytest.mark.usefixtures("patient")
def test_requests_from_many_threads_are_all_served() -> None:
    table = RequestTable(limits(max_queue=1000, num_blocks=60))
    asked = [request(uid, prompt=3, max_tokens=3) for uid in range(40)]

    def produce(mine: range) -> None:
        rnd = random.Random(mine.start)
        for uid in mine:
            time.sleep(rnd.random() / 500)
            table.submit(asked[uid])
        table.close()

    threads = [
        threading.Thread(target=produce, args=(range(first, first + 10),))
        for first in range(0, 40, 10)
    ]
    for _ in threads:
        table.open()
    for thread in threads:
        thread.start()
    step = 0
    while True:
        batch = table.schedule(step)
        if not batch and table.idle:
            break
        settle(table, batch)
        step += 1
    for thread in threads:
        thread.join()
    assert [each.finish_reason for each in asked] == ["length"] * 40


def test_a_full_queue_refuses_and_loses_nothing() -> None:
    table = RequestTable(limits(max_queue=2))
    table.submit(request(0))
    table.submit(request(1))
    with pytest.raises(RequestError, match="the queue is full") as caught:
        table.submit(request(2))
    assert caught.value.code == "SW-QUEUE-FULL"
    assert {row.request.uid for row in table.schedule(0).rows} == {0, 1}


def test_who_arrives_and_is_cancelled_while_others_are_taken_out_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = RequestTable(limits())
    asked = request(0, max_tokens=20)
    drained = inboxes._drained
    turns = 0

    def drained_late(inbox: Any) -> Iterator[Any]:
        nonlocal turns
        turns += 1
        yield from drained(inbox)
        if turns == 1:  # between the two queues
            table.submit_all([asked])
            table.cancel(0)

    monkeypatch.setattr(inboxes, "_drained", drained_late)
    for step in range(30):
        settle(table, table.schedule(step))
    assert asked.finish_reason == "cancelled"
    assert len(asked.output_ids) < 3
