"""Several callers of one LLM, and what it tells those who listen."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from stepweave import LLM, SamplingParams
from stepweave.models.tokenizer import StreamDecoder
from stepweave.requests.request import RequestOutput
from stepweave.serving import intake
from stepweave.serving.engine import EngineError

STORY = "Write a short story about a fox."
SHORT = SamplingParams(max_tokens=6)
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    # No process of each library that tries grammars: those take seconds to start.
    return LLM(pipeline="async_grammar", overrides={"nodes.bitmask.compile_limit_s": "null"})


def prompt(number: int) -> str:
    return f"Write a short story about animal number {number}."


def test_many_threads_get_the_tokens_that_one_caller_gets(llm: LLM) -> None:
    numbers = range(12)
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


def test_calls_of_several_threads_share_the_steps_of_one_run(llm: LLM) -> None:
    """The second call begins and ends while the first is under way."""
    second: list[RequestOutput] = []

    def call() -> None:
        second.extend(llm.generate(STORY, SHORT))

    thread = threading.Thread(target=call)
    texts: list[str] = []

    def on_text(name: str, piece: str) -> None:
        texts.append(piece)
        if len(texts) == 1:
            thread.start()
            thread.join()

    steps = llm.engine.totals.steps
    long = replace(ENDLESS, max_tokens=120)
    [first] = llm.generate(STORY, long, on_text=on_text)
    assert second[0].finish_reason == "length"
    assert first.finish_reason == "length"
    assert first.text == "".join(texts)
    assert first.text.startswith(second[0].text)
    assert llm.engine.totals.steps - steps < 120 + 6 + 3 * llm.config.depth


def test_cancel_ends_every_call_that_is_under_way_and_none_that_comes_later(llm: LLM) -> None:
    under_way = threading.Barrier(3)
    found: list[RequestOutput] = []

    def call() -> None:
        waited: list[str] = []

        def on_text(name: str, piece: str) -> None:
            if not waited:
                waited.append(piece)
                under_way.wait()

        found.extend(llm.generate(STORY, ENDLESS, on_text=on_text))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    under_way.wait()
    llm.cancel()
    for thread in threads:
        thread.join()
    assert {output.finish_reason for output in found} <= {"cancelled", "length"}
    assert llm.generate(STORY, SHORT)[0].finish_reason == "length"


def test_a_cancel_while_prompts_are_taken_in_begins_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    take_in = type(llm.service.intake).requests

    def cancelling(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken == 2:
            llm.cancel()
        return take_in(*arguments)

    monkeypatch.setattr(type(llm.service.intake), "requests", cancelling)
    steps = llm.engine.totals.steps
    outputs = llm.generate([STORY] * 4, SHORT)
    assert [output.finish_reason for output in outputs] == ["cancelled"] * 4
    assert (taken, llm.engine.totals.steps) == (2, steps)


@pytest.mark.parametrize("executor", ["threads", "serial"])
def test_a_callback_may_call_the_same_llm(executor: str) -> None:
    with LLM(pipeline="async", overrides={"executor": executor}) as llm:
        alone = llm.generate(STORY, SHORT)
        inner: list[list[RequestOutput]] = []
        outer = llm.generate(
            STORY, SHORT, on_output=lambda _: inner.append(llm.generate(STORY, SHORT))
        )
        assert outer[0].token_ids == alone[0].token_ids == inner[0][0].token_ids


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


@pytest.mark.parametrize("tokens", [1, 60])
def test_what_a_listener_of_text_raises_is_in_the_output_of_its_prompt_alone(
    llm: LLM, tokens: int
) -> None:
    """Also where the request has ended before it, and where another prompt has its id."""
    heard = []

    def once(name: str, _: str) -> None:
        heard.append(name)
        if len(heard) == 1:
            raise OSError("no room")

    line: Any = {"id": "a", "prompt": STORY, "max_tokens": tokens, "ignore_eos": True}
    outputs = llm.generate([line, line], on_text=once)
    none, told = sorted(f"{each.error}" for each in outputs)
    assert none == "None"
    assert told.startswith("`on_text` raised OSError: no room (test_callers.py:")
    assert sorted(each.finish_reason for each in outputs) == ["error", "length"]
    assert len(heard) > 1


def test_a_closed_llm_says_so_to_those_with_a_grammar() -> None:
    with LLM(pipeline="async_grammar") as llm:
        pass
    with pytest.raises(EngineError, match="this LLM is closed"):
        llm.generate(STORY, {"max_tokens": 6, "structured_outputs": {"regex": "a+"}})


def test_cached_tokens_are_those_of_the_prompt(llm: LLM) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    [whole] = llm.generate(STORY, params)
    [again] = llm.generate(STORY, replace(params, settled_token_ids=whole.token_ids[:80]))
    assert again.token_ids == whole.token_ids
    assert 0 < again.cached_tokens <= len(llm.get_tokenizer()(STORY)["input_ids"]) + 20


def test_tokens_that_the_tokenizer_cannot_read_are_refused_with_their_prompt(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoder(tokenizer: Any, ids: Any) -> StreamDecoder:
        if 390 in ids:
            raise ValueError("bytes must be in range(0, 256)")
        return StreamDecoder(tokenizer, ids)

    monkeypatch.setattr(intake, "StreamDecoder", decoder)
    served, refused = llm.generate([[65, 66], [65, 390, 70]], SHORT)
    assert served.error is None
    assert refused.error is not None
    assert "prompt: the tokenizer makes no text of these tokens: bytes must be" in refused.error


def test_a_mapping_with_a_key_that_is_no_text_is_one_wrong_prompt(llm: LLM) -> None:
    prompts: list[Any] = [{1: 2}, {"prompt": STORY, "structured_outputs": {1: 2}}, STORY]
    first, nested, served = llm.generate(prompts, SHORT)
    assert "unknown key '1'" in f"{first.error}"
    assert "1" in f"{nested.error}"
    assert "did you mean 'structured_outputs'" not in f"{nested.error}"
    assert served.error is None


def test_a_warm_up_that_is_ended_leaves_the_engine_as_it_was() -> None:
    def ended(done: int, of: int, what: str) -> None:
        if done == 1:
            raise TimeoutError("long enough")

    two = {"executor": "serial", "scheduler.max_rows": 2, "plans": {"deep": {"depth": 3}}}
    with LLM(pipeline="async", overrides=two) as llm:
        engine = llm.engine
        steer, at = engine.steer, engine.at
        with pytest.raises(TimeoutError):
            llm.warm_up(ended)
        assert (engine.steer, engine.at) == (steer, at)
        assert engine.totals.tokens == engine.totals.requests == 0
