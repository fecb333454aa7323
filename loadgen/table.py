"""The table that users of serving benchmarks know."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from .speculation import Counts
from .summary import LATENCIES, Distribution, Summary

_WIDTH = 50


def table(
    summary: Summary,
    heading: str,
    limit: int | None = None,
    rate: float = inf,
    speculation: Counts | None = None,
) -> str:
    """Counts, throughput, latencies, and speculative decoding where a server tells of it."""
    lines = [heading.center(_WIDTH, "="), *_counts(summary, limit, rate)]
    for key, (name, title) in LATENCIES.items():
        lines += [title.center(_WIDTH, "-"), *_latency(name, summary.latencies[key])]
    if speculation is not None and speculation.drafts > 0:
        lines += ["Speculative Decoding".center(_WIDTH, "-"), *_speculation(speculation)]
    return "\n".join([*lines, "=" * _WIDTH])


def _counts(summary: Summary, limit: int | None, rate: float) -> Iterator[str]:
    yield _row("Successful requests:", summary.completed)
    yield _row("Failed requests:", summary.failed)
    if limit is not None:
        yield _row("Maximum request concurrency:", limit)
    if rate != inf:
        yield _row("Request rate configured (RPS):", rate)
    yield _row("Benchmark duration (s):", summary.seconds)
    yield _row("Total input tokens:", summary.input_tokens)
    if summary.cached_tokens is not None:
        yield _row("Cached input tokens:", summary.cached_tokens)
    yield _row("Total generated tokens:", summary.output_tokens)
    yield _row("Request throughput (req/s):", summary.request_throughput)
    yield _row("Output token throughput (tok/s):", summary.output_throughput)
    yield _row("Peak output token throughput (tok/s):", summary.peak_output_throughput)
    yield _row("Peak concurrent requests:", summary.peak_concurrency)
    yield _row("Total token throughput (tok/s):", summary.total_throughput)


def _latency(name: str, found: Distribution) -> Iterator[str]:
    figures = {"Mean": found.mean}
    for percentile, ms in found.percentiles.items():
        figures["Median" if percentile == 50.0 else f"P{percentile:g}"] = ms
    for called, ms in figures.items():
        yield _row(f"{called} {name} (ms):", ms if found.count else None)


def _speculation(found: Counts) -> Iterator[str]:
    yield _row("Acceptance rate (%):", 100 * found.rate)
    yield _row("Acceptance length:", found.length)
    yield _row("Drafts:", int(found.drafts))
    yield _row("Draft tokens:", int(found.drafted))
    yield _row("Accepted tokens:", int(found.accepted))
    if found.by_position:
        yield "Per-position acceptance (%):"
        for place, rate in enumerate(found.rates_by_position):
            yield _row(f"  Position {place}:", 100 * rate)


def _row(name: str, value: float | None) -> str:
    """`-` stands for what was not measured."""
    written = f"{value:.2f}" if isinstance(value, float) else str("-" if value is None else value)
    return f"{name:<40} {written}"
