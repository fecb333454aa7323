"""A rank that follows tells its callers what requests come to, in order, whenever they ask."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from stepweave.distributed.errors import GroupEnded
from stepweave.requests.increment import Increment
from stepweave.requests.params import SamplingParams
from stepweave.requests.plain_params import params_of
from stepweave.serving import following
from stepweave.serving.driver import Driver, Trace
from stepweave.serving.everywhere import compiled_everywhere
from stepweave.serving.following import Following
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarError, GrammarSpec


def request(uid: int, heard: Callable[[Increment], None] | None = None) -> Any:
    made = SimpleNamespace(
        uid=uid, id=str(uid), index=0, prompt_ids=(uid,), params=SamplingParams(), deliver=heard
    )
    made.output = lambda: made.finish_reason
    return made


def ticket(*requests: Any) -> Any:
    return SimpleNamespace(requests=requests)


@pytest.fixture
def rank() -> Following:
    """It has no group: whoever tests it is rank 0."""
    group: Any = SimpleNamespace(
        tasks=SimpleNamespace(serve=lambda do: None), replay=lambda *given: None
    )
    intake: Any = SimpleNamespace(remade=lambda spec, params: request(spec["uid"]))
    return Following(group, intake)


def made(rank: Following, uid: int) -> Callable[[Increment], None]:
    """What the driver of this rank delivers to."""
    deliver = rank._remade({"uid": uid, "params": params_of(SamplingParams())}).deliver
    assert deliver is not None
    return deliver


def piece(text: str) -> Increment:
    return Increment("", 0, text, (1,))


OUTPUT: Any = "the output"
END = Increment("", 0, output=OUTPUT)


def test_what_comes_while_a_caller_asks_comes_after_what_was_there(rank: Following) -> None:
    driver = made(rank, 3)
    heard: list[str] = []

    def hear(increment: Increment) -> None:
        heard.append(increment.text or str(increment.output))
        if increment.text == "a":  # the driver goes on meanwhile
            driver(piece("c"))
            driver(END)

    driver(piece("a"))
    driver(piece("b"))
    rank.ask([ticket(request(3, hear))])
    assert heard == ["a", "b", "c", "the output"]
    assert not rank._made
    assert not rank._asked


def test_who_asks_before_anything_came_hears_all_of_it(rank: Following) -> None:
    heard: list[Increment] = []
    rank.ask([ticket(request(3, heard.append))])
    driver = made(rank, 3)
    for each in (piece("a"), piece("b"), END):
        driver(each)
    assert heard == [piece("a"), piece("b"), END]
    assert not rank._asked


def test_what_had_ended_is_not_cancelled(rank: Following) -> None:
    """Rank 0 cancels all n completions of a prompt, those that have ended too."""
    made(rank, 3)(END)
    rank._cancelled(3, None)
    heard: list[Increment] = []
    rank.ask([ticket(request(3, heard.append))])
    assert heard == [END]
    made(rank, 4)
    rank.ask([ticket(request(4, heard.append))])
    rank._deliver(4, END)
    rank._cancelled(4, None)
    assert not rank._unbegun, "kept for nobody"


@pytest.mark.parametrize("early", [True, False])
def test_what_never_began_ends_for_who_asks(rank: Following, early: bool) -> None:
    heard: list[Increment] = []
    asker = request(3, heard.append)
    steps: list[Callable[[], None]] = [
        lambda: rank.ask([ticket(asker)]),
        lambda: rank._cancelled(3, "why"),
    ]
    for step in steps if early else reversed(steps):
        step()
    assert len(heard) == 1
    assert asker.finish_reason == "error"
    assert asker.error == "why"
    assert not rank._asked
    assert not rank._unbegun


def test_of_those_that_ended_the_last_are_known(
    rank: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "REMEMBERED", 4)
    for uid in range(9):
        made(rank, uid)(END)
    assert list(rank._over) == [5, 6, 7, 8]


def test_a_group_that_ends_is_not_the_fault_of_a_grammar() -> None:
    everywhere: Future[None] = Future()
    tasks: Any = SimpleNamespace(everywhere=lambda task, own: everywhere)
    own: Future[CompiledGrammar] = Future()
    found = compiled_everywhere(tasks, GrammarSpec("regex", "a"), None, own)
    everywhere.set_exception(GroupEnded("rank 1 is gone"))
    assert isinstance(found.exception(), GroupEnded)
    everywhere = Future()
    found = compiled_everywhere(tasks, GrammarSpec("regex", "a"), None, own)
    everywhere.set_exception(ValueError("rank 1: no"))
    assert isinstance(found.exception(), GrammarError)


def test_a_grammar_whose_request_was_cancelled_is_answered_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    everywhere: Future[None] = Future()
    tasks: Any = SimpleNamespace(everywhere=lambda task, own: everywhere)
    found = compiled_everywhere(tasks, GrammarSpec("regex", "a"), None, Future())
    assert found.cancel()
    everywhere.set_exception(ValueError("rank 1: no"))
    assert not caplog.records, "an error in a callback is logged, and nowhere else"


def test_tracing_ends_with_the_group() -> None:
    """Else whoever traces would wait for a run that there will not be."""

    def run(*given: Any, **options: Any) -> None:
        raise GroupEnded("rank 1 is gone")

    table = SimpleNamespace(
        idle=False, leave=lambda: None, resume=lambda: None, open=lambda: None, close=lambda: None
    )
    engine: Any = SimpleNamespace(
        new_table=lambda: table, run=run, totals=SimpleNamespace(failed_steps=0)
    )
    role: Any = SimpleNamespace(broken=lambda error: True, drives=lambda thread: None, ended=None)
    driver = Driver(engine, role, lambda error: None)
    nothing: Any = None
    trace = Trace(log=nothing)
    with driver.traced(trace):
        driver.drive()
        thread = driver._thread
        if thread is not None:
            thread.join(60)
    assert trace.ended.is_set()
    trace.ended.clear()  # its thread stays inside a collective
    role.ended = GroupEnded("rank 1 is gone")
    with driver.traced(trace):
        pass
