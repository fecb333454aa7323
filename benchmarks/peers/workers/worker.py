"""A process that loads one side of a comparison, and runs it whenever it is told to.

It is started by its path with the Python of the side's environment, so it imports nothing of this
repository, and the side by its name: `worker.py SIDE WORK.json`. Lines on standard input are
commands, `run` is the only one; answers are lines of JSON on standard output. What libraries print
there goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

Tokens = list[list[int]]


def peak_bytes() -> int:
    """The most memory that this process has had (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    side = importlib.import_module(sys.argv[1])
    work: dict[str, Any] = json.loads(Path(sys.argv[2]).read_text())
    began = perf_counter()
    run: Callable[[], Tokens]
    run, about = side.start(work)
    loaded = {"loaded_s": perf_counter() - began, "peak_bytes": peak_bytes(), "about": about}
    answers.write(json.dumps(loaded) + "\n")
    for line in sys.stdin:
        if line.strip() != "run":
            raise SystemExit(f"unknown command {line!r}")
        began = perf_counter()
        tokens = run()
        seconds = perf_counter() - began
        said = {"seconds": seconds, "tokens": tokens, "peak_bytes": peak_bytes()}
        answers.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
