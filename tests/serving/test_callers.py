"""Several callers of one LLM, and what it tells those who listen."""

import threading
from typing import Any

import pytest

from stepweave import LLM, SamplingParams
from stepweave.requests.request import RequestOutput
from stepweave.serving.caller_queue import CallerQueue
from stepweave.serving.engine import EngineError

STORY = "Write a short story about a fox."
SHORT = SamplingParams(max_tokens=6)
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(pipeline="async_grammar")


def prompt(number: int) -> str:
    return f"Write a short story about animal number {number}."


def test_many_threads_get_the_tokens_that_one_caller_gets(llm: LLM) -> None:
    numbers = range(24)
    alone = [llm.generate(prompt(number), SHORT)[0].token_ids for number in numbers]
    found: dict[int, list[RequestOutput]] = {}
    together = threading.Barrier(len(numbers))

    def call(number: int) -> None:
        together.wait()
        found[number] = llm.generate([prompt(number)] * 2, SHORT)

    threads = [threading.Thread(target=call, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in numbers:
        assert [output.error for output in found[number]] == [None, None]
        assert [output.token_ids for output in found[number]] == [alone[number]] * 2


def test_callers_have_their_turns_in_the_order_in_which_they_came() -> None:
    turns, order = CallerQueue(), []

    def take(number: int, others: int) -> None:
        with turns.turn():
            order.append(number)

    threads = []
    with turns.turn():
        for number in range(20):
            threads.append(threading.Thread(target=take, args=(number, number)))
            threads[-1].start()
            while len(turns._line) < number + 2:  # until it stands in line
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert order == list(range(20))


def test_who_is_interrupted_while_waiting_gives_the_place_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, order = CallerQueue(), []

    class Interrupted:
        """A lock whose wait is broken off by Ctrl-C."""

        def acquire(self) -> bool:
            return True

        def release(self) -> None:
            raise AssertionError("nobody waits for this one any more")

        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    with turns.turn():
        with monkeypatch.context() as patch:
            patch.setattr("stepweave.serving.caller_queue.threading.Lock", Interrupted)
            with pytest.raises(KeyboardInterrupt), turns.turn():
                order.append("interrupted")
        waiting = threading.Thread(target=lambda: _note(turns, order))
        waiting.start()
    waiting.join()
    assert order == ["had its turn"]


def _note(turns: CallerQueue, order: list[str]) -> None:
    with turns.turn():
        order.append("had its turn")


def test_cancel_ends_the_call_that_is_served_and_not_those_that_wait(llm: LLM) -> None:
    waits = threading.Event()
    second: list[RequestOutput] = []

    def call() -> None:
        waits.set()
        second.extend(llm.generate(STORY, SHORT))

    thread = threading.Thread(target=call)

    def on_text(name: str, piece: str) -> None:
        if not waits.is_set():
            thread.start()
            waits.wait()
            llm.cancel()

    [first] = llm.generate(STORY, ENDLESS, on_text=on_text)
    thread.join()
    assert first.finish_reason == "cancelled"
    assert 0 < len(first.token_ids) < 400
    assert second[0].finish_reason == "length"


def test_a_cancel_while_prompts_are_taken_in_begins_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    take_in = type(llm._intake).requests

    def cancelling(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == 2:
            llm.cancel()
        return take_in(*arguments)

    monkeypatch.setattr(type(llm._intake), "requests", cancelling)
    steps = llm.engine.totals.steps
    outputs = llm.generate([STORY] * 4, SHORT)
    assert [output.finish_reason for output in outputs] == ["cancelled"] * 4
    assert (taken, llm.engine.totals.steps) == (2, steps)


@pytest.mark.parametrize("executor", ["threads", "serial"])
def test_a_call_from_a_callback_is_refused_where_it_would_wait_for_itself(executor: str) -> None:
    llm = LLM(pipeline="async", overrides={"executor": executor})
    said: list[str] = []

    def on_output(output: RequestOutput) -> None:
        with pytest.raises(EngineError) as caught:
            llm.generate(STORY, SHORT)
        said.append(caught.value.message)

    assert llm.generate(STORY, SHORT, on_output=on_output)[0].error is None
    assert "called from a callback" in said[0]
    assert llm.generate(STORY, SHORT)[0].error is None


def test_every_output_is_told_once_and_as_it_is_returned(llm: LLM) -> None:
    told: list[RequestOutput] = []
    lines: list[Any] = [
        {"id": "long", "prompt": STORY, "max_tokens": 30, "ignore_eos": True},
        {"id": "refused", "prompt": STORY, "stop_token_ids": [10**6]},
        {"id": "short", "prompt": STORY, "max_tokens": 2},
        {"id": "no grammar", "prompt": STORY, "structured_outputs": {"regex": "((("}},
        {"id": "three", "prompt": STORY, "max_tokens": 4, "n": 3, "temperature": 0.9},
    ]
    outputs = llm.generate(lines, on_output=told.append)
    assert sorted(told, key=str) == sorted(outputs, key=str)
    names = [output.id for output in told]
    assert names[0] == "refused"
    assert names.index("short") < names.index("three") < names.index("long")
    before = dict(llm.summary())
    llm.generate(lines)
    after = llm.summary()
    assert after["requests"] - before["requests"] == 5
    assert after["failed_requests"] - before["failed_requests"] == 2
    assert after["failed_steps"] == before["failed_steps"] == 0


def test_cancelled_outputs_are_told_as_well_with_all_their_text(llm: LLM) -> None:
    told: list[RequestOutput] = []
    texts: dict[str, str] = {}

    def on_text(name: str, piece: str) -> None:
        texts[name] = texts.get(name, "") + piece
        if sum(map(len, texts.values())) > 40:
            llm.cancel()

    outputs = llm.generate([STORY] * 3, ENDLESS, on_text=on_text, on_output=told.append)
    assert {output.finish_reason for output in outputs} == {"cancelled"}
    assert sorted(told, key=str) == sorted(outputs, key=str)
    assert {output.id: output.text for output in outputs} == texts


@pytest.mark.parametrize("listener", ["on_output", "on_progress"])
def test_what_a_listener_raises_ends_the_call_and_is_raised_by_it(llm: LLM, listener: str) -> None:
    calls = 0

    def broken(*_: object) -> None:
        nonlocal calls
        calls += 1
        raise OSError("no space left")

    listeners: Any = {listener: broken}
    lines: list[Any] = [{"prompt": STORY, "max_tokens": 2}, {"prompt": STORY, "max_tokens": 400}]
    tokens = llm.engine.totals.tokens
    with pytest.raises(OSError, match="no space left"):
        llm.generate(lines, **listeners)
    assert calls == 1
    assert llm.engine.totals.tokens - tokens < 300
    assert llm.generate(STORY, SHORT)[0].error is None


def test_an_output_says_how_long_it_waited_and_how_long_a_token_took(llm: LLM) -> None:
    lines: list[Any] = [
        {"prompt": STORY, "max_tokens": 1},
        {"prompt": STORY, "max_tokens": 9},
        [-1],
    ]
    one, many, refused = llm.generate(lines)
    assert refused.timings is None
    assert one.timings is not None
    assert one.timings.per_token_s is None
    timings = many.timings
    assert timings is not None
    assert timings.queue_s is not None
    assert timings.first_token_s is not None
    assert timings.per_token_s is not None
    assert timings.total_s is not None
    assert 0 < timings.queue_s < timings.first_token_s < timings.total_s
    decoding = timings.total_s - timings.first_token_s
    assert timings.per_token_s == pytest.approx(decoding / (len(many.token_ids) - 1))
    assert list(many.to_json()["timings"]) == [
        *("queue_s", "first_token_s", "per_token_s", "total_s")
    ]


def test_a_closed_llm_serves_nobody_and_says_so() -> None:
    with LLM(pipeline="async") as llm:
        assert llm.generate(STORY, SHORT)[0].error is None
    with pytest.raises(EngineError, match="this LLM is closed"):
        llm.generate(STORY, SHORT)
