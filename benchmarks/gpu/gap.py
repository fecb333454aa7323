"""The gap between consecutive device work, with and without host jitter; the period foretold.

Asynchronous scheduling, speculation and a grammar on every row. Timing events on the stream that
computes say when each device op began and ended; the gap is what lies between one's end and the
next one's beginning, over the steps in which all rows decode, as a share of their time. With
jitter, each schedule sleeps a millisecond on the host. The predicted period is that of the plan,
simulated with the median costs of the same run. Untraced runs, in turn with the traced ones, say
what a step takes when nobody looks, and a run under torch's sync debug mode counts calls that wait
for the device: in a steady state there must be none. (A rehearsal asks checking mode instead.)

    python -m benchmarks.gpu.gap [--model 8b] [--rows 10] [--toy]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from stepweave.executors.report import OpEvent, RunReport
from stepweave.graph.plan import Plan
from stepweave.serving.engine import Engine
from stepweave.timelines.profile import op_times, step_times
from stepweave.timelines.simulated import simulate

from ..paired import at_least_one
from . import steering
from .cube import TOKENS_PER_STEP, Cell, K, Workload
from .networks import DRAFTER, SIZES, TOY, TOY_DRAFTER, random_model, served
from .session import Session, alternate, begin, ratios, spread
from .traces import MIXED, make
from .workbench import (
    Noting,
    Pipeline,
    Served,
    engine,
    forget_counts,
    full_steps,
    replayed,
    serve,
    with_launches,
)

CELL = Cell(2, True, True)
COMPUTE = "compute"
JITTER_S = 1e-3


def gaps(events: Sequence[OpEvent], steps: set[int]) -> tuple[list[float], float]:
    """Seconds between consecutive ops of the stream within these steps, and their whole time."""
    ordered = sorted(
        (event for event in events if event.actor == COMPUTE and event.step in steps),
        key=lambda event: (event.start_s, event.end_s),
    )
    found, whole = [], 0.0
    for one, other in pairwise(ordered):
        if other.step - one.step > 1:
            continue  # steps that do not count lie between
        found.append(max(0.0, other.start_s - one.end_s))
        whole += max(0.0, other.end_s - one.end_s)
    return found, whole


def analysed(plan: Plan, report: RunReport, rows: int) -> dict[str, float]:
    """Gaps, and the period of this run beside what the plan says of its costs; µs."""
    full = full_steps(report, rows)
    between, whole = gaps(report.events, full)
    if not between:
        raise RuntimeError("no two steps in a row had all rows decoding: give more requests")
    times = op_times(with_launches(plan, report.events), full)
    medians = {op: statistics.median(each) for op, each in times.items()}
    periods = step_times(report.events, full)
    costs = {op: medians.get(op, 0.0) for op in plan.graph.vertices}
    foretold = simulate(plan, steps=200, costs=costs).period_us
    return {
        "gap_share": sum(between) / whole,
        "gap_us_per_step": sum(between) * 1e6 / max(1, len(full)),
        "largest_gap_us": max(between) * 1e6,
        "period_us": statistics.median(periods),
        "predicted_us": foretold,
        "predicted_over_measured": foretold / statistics.median(periods),
        "steps": float(len(full)),
    }


def waiting_calls(session: Session, made: Engine, work: Workload) -> dict[str, Any]:
    """Calls that made the host wait for the device, by the line that made them."""
    if session.toy:
        strict = replace(made, check="strict", executor=session.executor(graphs=False))
        work.check(CELL, serve(strict, work.requests(CELL)))  # a hidden wait ends the run
        return {"count": 0, "by": "checking mode", "where": {}}
    where: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work.check(CELL, serve(made, work.requests(CELL)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each in caught:
        if "called a synchronizing" in str(each.message):  # not that the mode is a prototype
            line = f"{Path(each.filename).name}:{each.lineno}"
            where[line] = where.get(line, 0) + 1
    return {"count": sum(where.values()), "by": "torch's sync debug mode", "where": where}


def measure(session: Session) -> dict[str, Any]:
    given = session.options
    size, small = (TOY, TOY_DRAFTER) if session.toy else (SIZES[given.model], DRAFTER)
    networks = [random_model(each, session.device, session.dtype) for each in (size, small)]
    model, drafter = (served(each, compiled=given.compile) for each in networks)
    rows = given.rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.safetensors"
        schemas = ("choice",) if session.toy else MIXED
        count = 2 if session.toy else 16
        traces = make(schemas, count, size.vocab, K, TOKENS_PER_STEP, threads=8)
        traces.save(path)
        prompt = 24 if session.toy else given.prompt
        requests = given.requests or (3 * rows if session.toy else 6 * rows)
        work = Workload(rows, requests, prompt, traces, path, size.vocab)
        engines: dict[str, Engine] = {}
        for name, delay in (("quiet", None), ("jitter", lambda: time.sleep(JITTER_S))):
            engines[name] = engine(
                Pipeline(CELL.depth, work.k, True, path),
                model,
                Noting(session.executor(graphs=True), delay),
                rows=rows,
                context=work.context,
                budget=max(2 * prompt, rows * (work.k + 1)),
                drafter=drafter,
            )
        return _measured(session, engines, work)


def _measured(session: Session, engines: dict[str, Engine], work: Workload) -> dict[str, Any]:
    def run(name: str, *, trace: bool) -> Served:
        served = serve(engines[name], work.requests(CELL), trace=trace)
        work.check(CELL, served)
        return served

    for name in engines:
        for _ in range(1 if session.toy else 3):
            run(name, trace=False)
        forget_counts(engines[name].executor)
    sides = {
        f"{name}, {how}": partial(run, name, trace=how == "traced")
        for name in engines
        for how in ("traced", "untraced")
    }
    found = alternate(sides, rounds=session.options.rounds, until=session.until(0.8))
    result: dict[str, Any] = {
        "acceptance": f"synthetic, {TOKENS_PER_STEP} tokens a step, {K} drafts",
        "rows": work.rows,
        "requests": work.count,
        "jitter_ms": JITTER_S * 1e3,
        "tokens_equal": True,
    }
    for name, made in engines.items():
        each = [analysed(made.plan, one.report, work.rows) for one in found[f"{name}, traced"]]
        result[name] = {key: spread([one[key] for one in each]) for key in each[0]}
        result[name]["itl_untraced_us"] = spread(
            [statistics.median(one.gaps_s) * 1e6 for one in found[f"{name}, untraced"]]
        )
        result[name]["graphs"] = replayed(made.executor)
        said = result[name]
        session.say(
            f"{name:7} gap {said['gap_share']['median']:.2%} of the time, "
            f"{said['gap_us_per_step']['median']:.0f} µs per step; period "
            f"{said['period_us']['median']:.0f} µs, predicted "
            f"{said['predicted_over_measured']['median']:.3f} of it"
        )
    result["jitter_over_quiet"] = ratios(
        [one.seconds for one in found["jitter, untraced"]],
        [one.seconds for one in found["quiet, untraced"]],
    )
    result["tracing_over_not"] = ratios(
        [one.seconds for one in found["quiet, traced"]],
        [one.seconds for one in found["quiet, untraced"]],
    )
    session.save(result)
    result["waiting_calls"] = waiting_calls(session, engines["quiet"], work)
    session.say(f"calls that waited for the device: {result['waiting_calls']}")
    session.say(f"jitter over quiet, whole run: {result['jitter_over_quiet']['median']:.3f}")
    session.save(result)
    return result


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=sorted(SIZES), default="8b")
    parser.add_argument("--rows", type=at_least_one, default=10)
    parser.add_argument("--requests", type=at_least_one)
    parser.add_argument("--prompt", type=at_least_one, default=310)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="run layers as they are"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    session = begin("gap", __doc__, argv, options, minutes=4)
    with steering.installed():
        return measure(session)


if __name__ == "__main__":
    main()
