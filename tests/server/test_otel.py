"""Spans of calls: what they say, and whose children they are.

That a collector gets them is in test_clients.py, where a service is a process: the exporter's
library `requests` is a folder here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from stepweave.server import conversations
from stepweave.server.otel import Spans
from tests.server.in_thread import Running, running

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Write a short story about a fox named Ida."}]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-request-id": "mine"}


class Collected:
    """A service, and the spans of what it answered."""

    def __init__(self, service: Running, spans: Spans, exporter: InMemorySpanExporter) -> None:
        self.service, self.spans, self.exporter = service, spans, exporter

    def of(self, headers: dict[str, str] | None = None, **body: Any) -> list[ReadableSpan]:
        self.exporter.clear()
        with self.service.client() as client:
            answer = client.post(CHAT, json={"messages": HELLO, **body}, headers=headers)
            assert answer.status_code == (400 if "max_tokens" not in body else 200)
        # The span is made when the last byte is sent, which a client may see a moment earlier.
        for _ in range(2000):
            self.spans._provider.force_flush()
            found = list(self.exporter.get_finished_spans())
            whole = any(each.name.startswith("chat ") for each in found)  # which ends last
            if whole or answer.status_code == 400:
                return found
            threading.Event().wait(0.01)
        raise AssertionError("no span came")


@pytest.fixture(scope="module")
def collected() -> Iterator[Collected]:
    exporter = InMemorySpanExporter()
    spans = Spans(exporter)
    with running(observers=[spans]) as service:
        yield Collected(service, spans, exporter)
    spans.close()


def test_a_call_is_one_span_with_what_it_waited_for_below(collected: Collected) -> None:
    *parts, call = collected.of(PARENT, max_tokens=6)
    assert [each.name for each in parts] == ["queue", "prefill", "decode"]
    assert call.name == "chat embedded"
    assert call.context is not None
    assert call.parent is not None
    assert f"{call.context.trace_id:032x}" == TRACE
    assert f"{call.parent.span_id:016x}" == "00f067aa0ba902b7"
    said = dict(call.attributes or {})
    assert said["gen_ai.response.id"] == "mine"
    assert said["gen_ai.usage.output_tokens"] == 6
    assert said["gen_ai.usage.input_tokens"] > 10  # type: ignore[operator]
    assert said["gen_ai.response.finish_reasons"] == ("length",)
    assert said["http.response.status_code"] == 200
    for part in parts:
        assert part.parent is not None
        assert part.parent.span_id == call.context.span_id
    times = [call.start_time, *(each.end_time for each in parts), call.end_time]
    assert times == sorted(times, key=lambda at: at or 0)
    assert [each.start_time for each in parts[1:]] == [each.end_time for each in parts[:-1]]
    queue_ns = (parts[0].end_time or 0) - (parts[0].start_time or 0)
    assert queue_ns / 1e9 == pytest.approx(said["gen_ai.latency.time_in_queue"], abs=1e-6)


def test_what_it_waited_for_begins_when_the_prompt_was_handed_in(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the service read and encoded it."""
    make = conversations._message

    def slow(*given: Any) -> dict[str, Any]:
        threading.Event().wait(0.2)
        return make(*given)

    monkeypatch.setattr(conversations, "_message", slow)
    *parts, call = collected.of(max_tokens=6)
    assert (parts[0].start_time or 0) - (call.start_time or 0) >= 200_000_000
    assert (parts[-1].end_time or 0) <= (call.end_time or 0)


def test_cached_tokens_of_a_prompt_count_once_for_all_its_choices(collected: Collected) -> None:
    collected.of(max_tokens=2)
    *_, call = collected.of(max_tokens=2, n=4)
    said = dict(call.attributes or {})
    cached, prompt = (said[f"gen_ai.usage.{each}input_tokens"] for each in ("cache_read.", ""))
    assert 0 < cached <= prompt  # type: ignore[operator]


def test_a_stream_that_fails_under_way_is_an_error(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status was 200 when it began."""
    observer, engine = collected.spans, collected.service.llm.service

    def failing(served: Any, choice: int, increment: Any, at_s: float) -> None:
        if increment.output is None:
            for ticket in {*engine._live.values()}:
                engine.cancel(ticket, "the matcher is broken")
        Spans.settled(observer, served, choice, increment, at_s)

    monkeypatch.setattr(observer, "settled", failing)
    *_, call = collected.of(max_tokens=900, ignore_eos=True, stream=True)
    assert dict(call.attributes or {})["http.response.status_code"] == 200
    assert call.status.status_code is StatusCode.ERROR
    assert call.status.description == "the matcher is broken"


def test_calls_of_one_id_at_a_time_have_a_span_each(collected: Collected) -> None:
    collected.exporter.clear()
    with collected.service.client() as client, ThreadPoolExecutor(2) as pool:
        bodies = [{"messages": HELLO, "max_tokens": most} for most in (40, 60)]
        asked = [
            pool.submit(client.post, CHAT, json=body, headers={"x-request-id": "same"})
            for body in bodies
        ]
        assert [each.result().status_code for each in asked] == [200, 200]
    for _ in range(2000):
        collected.spans._provider.force_flush()
        found = [s for s in collected.exporter.get_finished_spans() if s.parent is None]
        if len(found) == 2:
            break
        threading.Event().wait(0.01)
    told = [dict(each.attributes or {}) for each in found]
    assert {each["gen_ai.request.max_tokens"] for each in told} == {40, 60}
    assert all(each["gen_ai.response.finish_reasons"] for each in told)


def test_each_choice_has_its_own_parts_and_a_stream_ends_with_its_last_byte(
    collected: Collected,
) -> None:
    spans = collected.of(max_tokens=4, n=3, temperature=1.0, stream=True)
    assert [each.name for each in spans].count("decode") == 3
    [call] = [each for each in spans if each.parent is None]
    assert dict(call.attributes or {})["gen_ai.request.choice.count"] == 3
    assert "gen_ai.latency.e2e" not in (call.attributes or {})


def test_what_was_refused_has_no_span_and_nothing_is_kept_of_it(collected: Collected) -> None:
    assert collected.of(tempratur=1) == []
    assert collected.spans._open == {}


def test_a_header_that_is_no_trace_is_not_a_parent(collected: Collected) -> None:
    *_, call = collected.of({"traceparent": "00-" + "f" * 900}, max_tokens=2)
    assert call.parent is None
