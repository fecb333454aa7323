"""A comparison of layouts as text. The first line says that all of it is simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..loadgen.summary import Distribution
from .comparison import NOTICE, Comparison, errors_of
from .goal import MEASURE, broken
from .load import DEFAULT_REQUESTS
from .simulation import Outcomes
from .spent import GAPS, MEANING, WORK

_COLUMNS = (
    *("layout", "tokens/s", "TTFT p50", "p99", "TPOT p50", "p99", "ITL p99", "queue p99"),
    *("rows", "busy", "KV peak"),
)


def heading(found: Comparison) -> str:
    """The line that every output begins with."""
    return f"{NOTICE}: {found.cluster.origin}"


def about(found: Comparison) -> Iterator[str]:
    """What was simulated, a line for each part."""
    config, costs = found.cluster.config, found.simulator.costs
    network = f", {config.network.describes} between nodes" if config.network else ""
    yield "layout   ranks of a tensor group x stages of the pipeline x replicas"
    yield f"model    {config.model.describes}, {config.model.parameters / 1e9:.1f} G parameters"
    yield f"devices  {config.nodes} × {config.devices} {config.device.describes}"
    yield f"links    {config.link.describes}{network}"
    yield f"pipeline {config.pipeline}; forward pass by roofline, other ops by {costs.label}"
    yield f"load     {_load(found)}"


def _load(found: Comparison) -> str:
    load = found.cluster.config.load
    if load.trace is not None:
        fast = "" if load.speed_up == 1 else f", {load.speed_up:g} times as fast"
        return f"{found.requests} requests of {load.trace}{fast}"
    rate = "all at once" if load.rate is None else f"{load.rate:g} a second"
    count = load.requests or DEFAULT_REQUESTS
    return f"{count} requests, {rate}, {load.input} + {load.output} tokens ± {load.spread:.0%}"


def verdict(found: Comparison) -> Iterator[str]:
    """Which layout is best, and why the others are out of the question."""
    for name, why in found.refused:
        yield f"{name} does not fit: {why}"
    for each in found.found:
        for reason in broken(each, found.limits):
            yield f"{each.layout} is out of the question: {reason}"
        for reason in errors_of(each):
            yield f"  {reason}"
    if found.best is None:
        yield "no layout serves every request and keeps to the limits"
    else:
        yield f"best for {found.goal} ({MEASURE[found.goal]}): {found.best.layout}"


def figures(found: Comparison) -> list[tuple[str, ...]]:
    """A row for each layout, under a row of headings: rates and latencies."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for each in found.found:
        rows.append((str(each.layout), *_figures(each)))
    return rows


def _figures(found: Outcomes) -> Iterator[str]:
    summary = found.summary
    yield f"{summary.output_throughput:,.0f}"
    for latency, shown in (("ttft", (50.0, 99.0)), ("tpot", (50.0, 99.0)), ("itl", (99.0,))):
        for wanted in shown:
            yield _ms(summary.latencies[latency], wanted)
    yield _ms(found.queue, 99.0)
    yield f"{found.rows_a_step:.1f}"
    yield f"{found.utilization:.0%}"
    yield f"{found.cache_peak:.0%}"


def _ms(found: Distribution, wanted: float) -> str:
    return f"{found.percentiles[wanted]:,.1f}" if found.count else "–"


def spent(found: Sequence[Outcomes]) -> list[tuple[str, ...]]:
    """A row for each layout, under a row of headings: where the time of its devices goes."""
    names = [name for name in (*WORK, *GAPS) if any(each.shares[name] >= 5e-4 for each in found)]
    rows: list[tuple[str, ...]] = [("layout", *names)]
    for each in found:
        rows.append((str(each.layout), *(f"{each.shares[name]:.1%}" for name in names)))
    return rows


def legend(found: Sequence[Outcomes]) -> list[str]:
    """What the columns of `spent` mean."""
    return [f"{name}: {MEANING[name]}" for name in spent(found)[0][1:]]
