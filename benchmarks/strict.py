"""What checking mode costs: the quickstart pipeline with `check: strict` against `check: off`.

Both run the same requests, in alternating rounds; the figure is the median of the paired ratios of
processor time, which on a shared machine says more than the clock, and of the clock beside it. What
each operation costs more is nearly constant, so the ratio is worst where a model is small: the
embedded one has some of the smallest matrices that are of any use.

    python -m benchmarks.strict [--rounds 11] [--max-tokens 32] [--set executor=serial]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, process_time

from stepweave import LLM

from .paired import Spread, at_least_one, own_process, rounds, save

PROMPTS = ("Write a short story about a fox.", "Write a short story about a lamp.") * 3


class Side:
    """One pipeline, and what its runs took."""

    def __init__(self, check: str, settings: dict[str, str]) -> None:
        settings = {"torch_threads": "1", "scheduler.prefix_cache": "false", **settings}
        self.llm = LLM(pipeline="quickstart", overrides={**settings, "check": check})
        self.cpu: list[float] = []
        self.tokens: list[list[int]] = []

    def timed(self, max_tokens: int) -> Callable[[], float]:
        lines = [{"prompt": prompt, "max_tokens": max_tokens} for prompt in PROMPTS]

        def run() -> float:
            cpu, wall = process_time(), perf_counter()
            outputs = self.llm.generate(lines)
            self.cpu.append(process_time() - cpu)
            self.tokens = [list(output.token_ids) for output in outputs]
            return perf_counter() - wall

        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=at_least_one, default=11)
    parser.add_argument("--max-tokens", type=at_least_one, default=32)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    settings = dict(each.split("=", 1) for each in given.set)
    off, strict = Side("off", settings), Side("strict", settings)
    without, checked = rounds(
        given.rounds, off.timed(given.max_tokens), strict.timed(given.max_tokens)
    )
    assert off.tokens == strict.tokens, "checking changed the tokens"
    clock = Spread.of([b / a for a, b in zip(without, checked, strict=True)])
    # The round that warms up is not counted.
    cpu = Spread.of([b / a for a, b in zip(off.cpu[1:], strict.cpu[1:], strict=True)])
    print(f"strict over off: processor time {cpu}, clock {clock}")
    save("strict", {"processor_ratio": asdict(cpu), "clock_ratio": asdict(clock)}, given.json)


if __name__ == "__main__":
    own_process()
    main()
