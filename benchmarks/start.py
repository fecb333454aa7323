"""What a command costs before it has done anything, in processes of their own.

- `check`: `stepweave check` of an abstract graph, from the start of the process to its end;
- `run`: `stepweave run` of the embedded model for one token, from the start to the end;
- `imports`: Python, importing torch and what loads a model in transformers, and nothing of ours.

In turn, round by round, in alternating order. Processor time (of user and system, all threads) is
given beside wall time: on a machine that others use too, it alone can be compared. Python keeps
what it has compiled, as it does for anybody, even if it was told not to here.

    python -m benchmarks.start [--rounds 9] [--only check run]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter

from .paired import Spread, at_least_one, save

STEPWEAVE = [sys.executable, "-m", "stepweave"]
COMMANDS = {
    "check": [*STEPWEAVE, "check", "abstract_decode"],
    "run": [*STEPWEAVE, "run", "async", "--prompt", "Once upon a time", "--max-tokens", "1"],
    "imports": [sys.executable, "-c", "from transformers import AutoModelForCausalLM"],
}
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(command: list[str]) -> tuple[float, float]:
    """Of the processor, and on the clock."""
    before, started = getrusage(RUSAGE_CHILDREN), perf_counter()
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    wall, after = perf_counter() - started, getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--only", nargs="+", choices=[*COMMANDS], default=[*COMMANDS])
    parser.add_argument("--json", type=Path, help="where to write the figures")
    given = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in given.only}
    for number in range(given.rounds + 1):
        for name in sorted(given.only, reverse=number % 2 == 0):
            sample = seconds(COMMANDS[name])
            if number:  # the first round fills the caches of files
                taken[name].append(sample)
    table = {}
    print(f"{'command':10} {'processor, s':>26} {'wall, s':>26}")
    for name, samples in taken.items():
        processor, wall = (Spread.of([*each]) for each in zip(*samples, strict=True))
        table[name] = {"processor_s": vars(processor), "wall_s": vars(wall)}
        print(f"{name:10} {processor!s:>26} {wall!s:>26}")
    save("start", table, given.json)


if __name__ == "__main__":
    main()
