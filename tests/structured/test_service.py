"""Grammars are compiled beside the caller: once each, in order, and never in its way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from stepweave.structured.backend import CompiledGrammar, GrammarBackend
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.service import GrammarService, QueueFull
from stepweave.structured.xgrammar_backend import XGrammarBackend

WAIT_S = 20.0
FAST, FASTER, SLOW, BAD = (GrammarSpec("regex", text) for text in ("a", "b", "slow", "bad"))


class Scripted:
    """A backend that compiles "slow" only when it is released, and refuses "bad"."""

    vocab_size = 8

    def __init__(self, real: GrammarBackend) -> None:
        self.real = real
        self.started = threading.Semaphore(0)
        self.release = threading.Event()
        self.calls: list[GrammarSpec] = []
        self.ready: dict[GrammarSpec, CompiledGrammar] = {}

    def cached(self, spec: GrammarSpec) -> CompiledGrammar | None:
        return self.ready.get(spec)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        self.calls.append(spec)
        if spec == SLOW:
            self.started.release()
            assert self.release.wait(WAIT_S)
        if spec == BAD:
            raise GrammarError("regex: bad")
        return self.ready.setdefault(spec, self.real.compile(GrammarSpec("regex", "a")))


@pytest.fixture
def scripted(xgrammar: XGrammarBackend) -> Iterator[Scripted]:
    backend = Scripted(xgrammar)
    yield backend
    backend.release.set()


def begin_slow(service: GrammarService, scripted: Scripted) -> Future[CompiledGrammar]:
    """Submit the slow grammar and wait until a worker is at it."""
    future = service.submit(SLOW)
    assert scripted.started.acquire(timeout=WAIT_S)
    return future


def test_a_fast_grammar_overtakes_a_slow_one_if_there_is_a_second_worker(
    scripted: Scripted,
) -> None:
    service = GrammarService(scripted, workers=2)
    slow = begin_slow(service, scripted)
    assert service.submit(FAST).result(WAIT_S) is scripted.ready[FAST]
    assert not slow.done()
    scripted.release.set()
    assert slow.result(WAIT_S) is scripted.ready[SLOW]
    service.close()


def test_with_one_worker_grammars_are_compiled_in_the_order_asked(scripted: Scripted) -> None:
    service = GrammarService(scripted)
    begin_slow(service, scripted)
    later = [service.submit(FASTER), service.submit(FAST)]
    assert not any(each.done() for each in later)
    scripted.release.set()
    for each in later:
        each.result(WAIT_S)
    assert scripted.calls == [SLOW, FASTER, FAST]
    service.close()


def test_equal_grammars_under_way_are_compiled_once_and_cached_ones_are_there_at_once(
    scripted: Scripted,
) -> None:
    service = GrammarService(scripted)
    first = begin_slow(service, scripted)
    again = [service.submit(GrammarSpec("regex", "slow")) for _ in range(3)]
    assert again[0] is not first, "each caller may cancel its own"
    assert again[2].cancel()
    scripted.release.set()
    assert {id(each.result(WAIT_S)) for each in (first, *again[:2])} == {id(scripted.ready[SLOW])}
    cached = service.submit(SLOW)
    assert cached.done()
    assert scripted.calls == [SLOW]
    service.close()


def test_a_refusal_is_the_answer_to_its_own_grammar_only(scripted: Scripted) -> None:
    service = GrammarService(scripted)
    bad, good = service.submit(BAD), service.submit(FAST)
    with pytest.raises(GrammarError, match="regex: bad"):
        bad.result(WAIT_S)
    assert good.result(WAIT_S) is scripted.ready[FAST]
    service.close()


def test_a_full_queue_refuses_new_grammars_but_not_more_of_those_that_wait(
    scripted: Scripted,
) -> None:
    service = GrammarService(scripted, max_waiting=1)
    begin_slow(service, scripted)
    waiting = service.submit(FAST)
    with pytest.raises(QueueFull, match="1 grammars wait") as caught:
        service.submit(FASTER)
    assert caught.value.code == "SW-QUEUE-FULL", "so a client may come again"
    shared = service.submit(FAST)
    scripted.release.set()
    assert waiting.result(WAIT_S) is shared.result(WAIT_S)
    service.submit(FASTER).result(WAIT_S)
    service.close()


def test_what_nobody_wants_any_more_is_not_compiled(scripted: Scripted) -> None:
    service = GrammarService(scripted)
    begin_slow(service, scripted)
    dropped, kept = service.submit(FASTER), service.submit(FAST)
    assert dropped.cancel()
    scripted.release.set()
    kept.result(WAIT_S)
    assert FASTER not in scripted.calls
    service.close()


def test_what_nobody_wants_any_more_takes_no_place_in_the_queue(scripted: Scripted) -> None:
    service = GrammarService(scripted, max_waiting=1)
    begin_slow(service, scripted)
    assert service.submit(FASTER).cancel()
    kept = service.submit(FAST)
    scripted.release.set()
    kept.result(WAIT_S)
    assert FASTER not in scripted.calls
    service.close()


def test_closing_cancels_what_waits_and_finishes_what_runs(scripted: Scripted) -> None:
    service = GrammarService(scripted)
    running = begin_slow(service, scripted)
    waiting = service.submit(FAST)
    waiting.add_done_callback(lambda _: scripted.release.set())
    service.close()
    assert waiting.cancelled()
    assert running.result(0) is scripted.ready[SLOW]
    with pytest.raises(RuntimeError, match="closed"):
        service.submit(FAST)
    service.close()


def test_a_service_without_workers_is_refused(scripted: Scripted) -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        GrammarService(scripted, workers=0)
