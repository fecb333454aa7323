"""Spans of OpenTelemetry: one of each call, and below it what each of its choices waited for.

Names and attributes are those of its semantic conventions for generative AI, and `gen_ai.latency.*`
as vLLM has them. A client's `traceparent` (W3C Trace Context) is the parent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from time import perf_counter, time_ns
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..requests.increment import Increment
from ..requests.request import RequestOutput
from .observers import Exchange, Observer, Served

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

FLUSH_MS = 2000
"""How long an ending service waits for the last spans to be taken."""

_OPERATIONS = {"chat": "chat", "completions": "text_completion", "responses": "chat"}
_LATENCIES = (
    "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_to_first_token",
    "gen_ai.latency.e2e",
)
_CONTEXT = TraceContextTextMapPropagator()


@dataclass
class _Open:
    """A call, and of each choice its output, with the moment at which it came."""

    served: Served
    outputs: dict[int, tuple[RequestOutput, float]] = field(default_factory=dict)


class Spans(Observer):
    """Makes the spans of calls that have been answered; an exporter takes them, beside the loop."""

    def __init__(self, exporter: SpanExporter) -> None:
        ours = version("stepweave")
        about = Resource.create({"service.name": "stepweave", "service.version": ours})
        self._provider = TracerProvider(resource=about)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("stepweave", ours)
        self._open: dict[tuple[str, float], _Open] = {}  # clients may give several calls one id
        epoch = time_ns() - int(perf_counter() * 1e9)  # once: spans of one service fit together
        self._ns: Callable[[float], int] = lambda at_s: epoch + int(at_s * 1e9)

    def begun(self, served: Served) -> None:
        self._open[served.id, served.began_s] = _Open(served)

    def settled(self, served: Served, choice: int, increment: Increment, at_s: float) -> None:
        if increment.output is None:
            return
        if (found := self._open.get((served.id, served.began_s))) is not None:
            found.outputs[choice] = (increment.output, at_s)

    def answered(self, exchange: Exchange) -> None:
        if (found := self._open.pop((exchange.id, exchange.began_s), None)) is not None:
            self._written(exchange, found)

    def close(self) -> None:
        """Hand over the last spans; for at most `FLUSH_MS`."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()

    def _written(self, exchange: Exchange, call: _Open) -> None:
        served, ended = call.served, [call.outputs[each] for each in sorted(call.outputs)]
        outputs = [output for output, _ in ended]
        cached = exchange.notes.get("cached_tokens", 0)
        assert isinstance(cached, int), "a note of a call"
        operation = _OPERATIONS[served.endpoint]
        span = self._tracer.start_span(
            f"{operation} {served.model}",
            context=_CONTEXT.extract(dict(exchange.trace)),
            kind=SpanKind.SERVER,
            start_time=self._ns(exchange.began_s),
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "stepweave",
                "gen_ai.request.model": served.model,
                "gen_ai.request.choice.count": served.choices,
                "gen_ai.request.max_tokens": served.max_tokens,
                "gen_ai.response.id": served.id,
                "gen_ai.response.finish_reasons": [each.finish_reason for each in outputs],
                "gen_ai.usage.input_tokens": served.prompt_tokens,
                "gen_ai.usage.output_tokens": sum(len(each.token_ids) for each in outputs),
                "gen_ai.usage.cache_read.input_tokens": cached,
                "stepweave.drafted_tokens": sum(each.drafted for each in outputs),
                "stepweave.accepted_tokens": sum(each.accepted for each in outputs),
                "http.response.status_code": exchange.status,
                "http.route": exchange.path,
            },
        )
        errors = [each.error for each in outputs if each.error is not None]
        if exchange.status >= 500 or (errors and exchange.status < 400):  # or in its stream
            span.set_status(Status(StatusCode.ERROR, "; ".join(errors) or None))
        for output, at_s in ended:
            self._choice(span, served, output, at_s)
        span.end(self._ns(perf_counter()))

    def _choice(self, call: Span, served: Served, output: RequestOutput, ended_s: float) -> None:
        """What one choice waited for: a row, its first token, and the tokens after it.

        Its timings count from when its prompt was handed in, which is behind what the service did
        before, such as to encode it.
        """
        timings = output.timings
        if timings is None or timings.total_s is None:
            return
        asked_s = ended_s - timings.total_s
        marks: Sequence[tuple[str, float | None]] = (
            ("queue", timings.queue_s),
            ("prefill", timings.first_token_s),
            ("decode", timings.total_s),
        )
        if served.choices == 1:
            for name, (_, at_s) in zip(_LATENCIES, marks, strict=True):
                if at_s is not None:
                    call.set_attribute(name, at_s)
        began = 0.0
        for name, ended in marks:
            if ended is None:
                return
            self._tracer.start_span(
                name,
                context=set_span_in_context(call),
                start_time=self._ns(asked_s + began),
                attributes={"gen_ai.response.id": output.id},
            ).end(self._ns(asked_s + ended))
            began = ended


def exported_to(endpoint: str) -> Spans:
    """Spans for a collector that takes OTLP over HTTP at `endpoint`, such as
    `http://localhost:4318/v1/traces`.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return Spans(OTLPSpanExporter(endpoint=endpoint))
