"""What the flight recorder of a service costs: the quickstart pipeline with it, and without.

First, what noting costs a step by itself: the step of `benchmarks.interpreter`, with bodies that do
nothing, run with a recorder and without. Then one engine serves the same requests in alternating
rounds; the figure is the median of the paired ratios of processor time per step, which on a shared
machine says more than the clock, and of the clock beside it. `watched` has a reader beside: one who
looks at the last steps each second, as the live page does, and has figures made of them as often as
the service makes any.

    python -m benchmarks.recorder [--rounds 21] [--max-tokens 48] [--set executor=serial]
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from stepweave import LLM, run
from stepweave.executors.recorder import Recorder
from stepweave.server.insight import Insight
from stepweave.server.live.snapshot import DRAWN
from stepweave.serving.flight import FlightRecorder

from .interpreter import body_of, decode_step
from .paired import Spread, at_least_one, own_process, rounds, save

PROMPTS = ("Write a short story about a fox.", "Write a short story about a lamp.") * 4
LOOKS_S = 1.0


class Sides:
    """One engine whose runs are recorded, watched, or neither."""

    def __init__(self, settings: dict[str, str], max_tokens: int) -> None:
        own = {"torch_threads": "1", "scheduler.prefix_cache": "false"}
        self.llm = LLM(pipeline="quickstart", overrides={**own, **settings})
        self.lines = [
            {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True} for prompt in PROMPTS
        ]
        self.cpu: dict[str, list[float]] = {}
        self.tokens: set[tuple[tuple[int, ...], ...]] = set()

    def timed(self, side: str) -> Callable[[], float]:
        """A round of that side: seconds of the clock per step; its processor time is kept."""

        def run() -> float:
            self.llm.service.record(None if side == "off" else FlightRecorder())
            with self._watched() if side == "watched" else _nobody():
                steps = self.llm.engine.totals.steps
                cpu, wall = process_time(), perf_counter()
                outputs = self.llm.generate(self.lines, progress=False)
                cpu, wall = process_time() - cpu, perf_counter() - wall
                steps = self.llm.engine.totals.steps - steps
            self.tokens.add(tuple(output.token_ids for output in outputs))
            self.cpu.setdefault(side, []).append(cpu / steps)
            return wall / steps

        return run

    @contextmanager
    def _watched(self) -> Iterator[None]:
        over, insight = threading.Event(), Insight(self.llm)

        def look() -> None:
            while not over.wait(LOOKS_S):
                flight = self.llm.service.flight
                assert flight is not None, "it records while it is watched"
                flight.stretch(self.llm.plans, DRAWN)
                insight.latest()

        reader = threading.Thread(target=look)
        reader.start()
        try:
            yield
        finally:
            over.set()
            reader.join()


def noting_us(count: int, executor: str, steps: int = 2000) -> Spread:
    """µs of processor time that a recorder takes of a step whose 13 ops do nothing."""
    plan = decode_step(body_of(0))

    def timed(recorder: Recorder | None) -> Callable[[], float]:
        def once() -> float:
            cpu = process_time()
            run(plan, executor=executor, steps=steps, trace=recorder or False)
            return (process_time() - cpu) / steps * 1e6

        return once

    without, with_it = rounds(count, timed(None), timed(Recorder(128)))
    return Spread.of([b - a for a, b in zip(without, with_it, strict=True)])


@contextmanager
def _nobody() -> Iterator[None]:
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=21)
    parser.add_argument("--max-tokens", type=at_least_one, default=48)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sides = Sides(dict(each.split("=", 1) for each in given.set), given.max_tokens)
    ops = len(sides.llm.plan.graph.vertices)
    result: dict[str, Any] = {"ops": ops, "noting_us": {}}
    for executor in ("serial", "threads"):
        noting = noting_us(given.rounds, executor)
        print(f"noting 13 ops that do nothing, {executor}: {noting} µs")
        result["noting_us"][executor] = asdict(noting)
    for side in ("on", "watched"):
        sides.cpu.clear()
        without, with_it = rounds(given.rounds, sides.timed("off"), sides.timed(side))
        clock = Spread.of([b / a for a, b in zip(without, with_it, strict=True)])
        # The round that warms up is not counted.
        pairs = zip(sides.cpu["off"][1:], sides.cpu[side][1:], strict=True)
        cpu = Spread.of([b / a for a, b in pairs])
        step = Spread.of([each * 1e6 for each in sides.cpu["off"][1:]])
        print(f"{side} over off: processor time {cpu}, clock {clock}; off: {step} µs a step")
        result[side] = {
            "processor_ratio": asdict(cpu),
            "clock_ratio": asdict(clock),
            "processor_us": asdict(step),
        }
    assert len(sides.tokens) == 1, "recording changed the tokens"
    save("recorder", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
