"""Time to first token under Poisson arrivals: synchronous, pipelined, and pipelined just in time.

Requests come from another thread, at the same times for every side, at a share (*load*) of what
the synchronous loop serves with all rows busy. All sides run on CUDA streams with graphs; only
depth and admission differ. Every request writes its stored text (`steering.py`), whatever the batch
it is in, so that tokens are equal although rounding depends on the batch.

    python -m benchmarks.gpu.ttft [--model 8b] [--load 0.3 0.6] [--toy]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stepweave.requests.request import Request
from stepweave.requests.table import RequestTable

from ..paired import at_least_one
from ..ttft import Latencies, poisson
from . import steering
from .cube import TOKENS_PER_STEP, Cell, K, Workload
from .networks import SIZES, TOY, random_model, served
from .session import Session, alternate, begin, spread
from .traces import make
from .workbench import Noting, Pipeline, Served, engine, replayed, serve

SIDES = {
    "synchronous": Pipeline(1),
    "depth 2, eager": Pipeline(2),
    "depth 2, just in time": Pipeline(2, just_in_time=True),
}
CELL = Cell(2, speculates=False, structured=False)
FEWEST = 4


def feeding(arrivals: Sequence[float]) -> Callable[[RequestTable, Sequence[Request]], list[float]]:
    """Submit each request at its time after the start, from a thread of its own."""

    def feed(table: RequestTable, requests: Sequence[Request]) -> list[float]:
        sent = [0.0] * len(requests)

        def send() -> None:
            began = time.perf_counter()
            try:
                for index, (one, at) in enumerate(zip(requests, arrivals, strict=True)):
                    time.sleep(max(0.0, began + at - time.perf_counter()))
                    sent[index] = time.perf_counter()
                    table.submit(one)
            finally:
                table.close()

        table.open()
        threading.Thread(target=send, name="feeder").start()
        return sent

    return feed


def _enough(arrivals: list[float]) -> list[float]:
    """Quantiles need a few: where chance gave none, they come at once."""
    return arrivals if len(arrivals) >= FEWEST else [0.0] * FEWEST


def latencies(served: Served) -> Latencies:
    """Times to first token and between tokens, µs."""
    between = [gap * 1e6 for gap in served.gaps_s]
    return Latencies.of([each * 1e6 for each in served.first_s], between)


def measure(session: Session) -> dict[str, Any]:
    given = session.options
    size = TOY if session.toy else SIZES[given.model]
    network = random_model(size, session.device, session.dtype)
    model = served(network, compiled=given.compile)
    rows = given.rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.safetensors"
        schemas = ("choice",) if session.toy else ("person",)
        traces = make(schemas, 2 if session.toy else 8, size.vocab, K, TOKENS_PER_STEP)
        traces.save(path)
        work = Workload(
            rows, 2 * rows, 24 if session.toy else given.prompt, traces, path, size.vocab
        )
        engines = {
            name: engine(
                Pipeline(side.depth, steered=path, just_in_time=side.just_in_time),
                model,
                Noting(session.executor(graphs=not session.toy)),
                rows=rows,
                context=work.context,
                budget=2 * work.prompt + rows,
                graphs=not session.toy,
            )
            for name, side in SIDES.items()
        }

        def run(name: str, arrivals: Sequence[float] | None) -> Served:
            count = work.count if arrivals is None else len(arrivals)
            wanted = Workload(rows, count, work.prompt, traces, path, size.vocab)
            feed = None if arrivals is None else feeding(arrivals)
            one = serve(engines[name], wanted.requests(CELL), feed=feed)
            wanted.check(CELL, one)
            return one

        rate = 0.0
        for name in engines:
            for _ in range(1 if session.toy else 2):
                run(name, None)
            if name == "synchronous":
                rate = work.count / run(name, None).seconds
        return _by_load(session, rate, run, engines)


@dataclass
class Arrivals:
    """Times of arrival, others in each round and the same for each side."""

    rate: float
    seconds: float
    turns: dict[str, int] = field(default_factory=dict)

    def of(self, turn: int) -> list[float]:
        return _enough(poisson(self.rate, self.seconds, turn))

    def next(self, side: str) -> list[float]:
        self.turns[side] = self.turns.get(side, -1) + 1
        return self.of(self.turns[side])


Run = Callable[[str, Sequence[float] | None], Served]


def _one(run: Run, name: str, arrivals: Arrivals) -> Latencies:
    return latencies(run(name, arrivals.next(name)))


def _by_load(
    session: Session,
    rate: float,
    run: Run,
    engines: dict[str, Any],
) -> dict[str, Any]:
    given = session.options
    found: dict[str, Any] = {"served_per_s": rate, "tokens_equal": True, "loads": {}}
    for number, load in enumerate(given.load):
        arrivals = Arrivals(load * rate, given.seconds)
        sides = {name: partial(_one, run, name, arrivals) for name in SIDES}
        for name in SIDES:
            run(name, arrivals.of(-1))  # shapes of this load
        until = session.until((number + 1) / len(given.load))
        runs = alternate(sides, rounds=given.rounds, until=until)
        part: dict[str, Any] = {}
        for name, each in runs.items():
            over = [a.over(b) for a, b in zip(each, runs["synchronous"], strict=True)]
            part[name] = {
                "mean_us": spread([one.mean for one in each]),
                "over_synchronous": {
                    figure: spread([one[figure] for one in over]) for figure in over[0]
                },
                "graphs": replayed(engines[name].executor),
            }
            ratio = part[name]["over_synchronous"]
            session.say(
                f"load {load}: {name:22} first token after "
                f"{part[name]['mean_us']['median'] / 1e3:8.2f} ms; of the synchronous: mean "
                f"{ratio['mean']['median']:.3f}, p90 {ratio['p90']['median']:.3f}, between tokens "
                f"{ratio['gap']['median']:.3f}"
            )
        found["loads"][str(load)] = part
        session.save(found)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=sorted(SIZES), default="8b")
    parser.add_argument("--rows", type=at_least_one, default=32)
    parser.add_argument("--prompt", type=at_least_one, default=310)
    parser.add_argument("--load", type=float, nargs="+", default=[0.3, 0.6])
    parser.add_argument("--seconds", type=float, default=6.0, help="of arrivals in a run")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="run layers as they are"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    session = begin("ttft", __doc__, argv, options, minutes=4)
    with steering.installed():
        return measure(session)


if __name__ == "__main__":
    main()
