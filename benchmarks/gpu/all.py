"""All GPU benchmarks in order of value, each in a process of its own, within a budget of time.

Each saves after every part. So a run that is cut off, or a script that fails, loses little; the
others go on.

    python -m benchmarks.gpu.all [--minutes 28] [--only cube roofline …] [--out DIR] [--toy]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

GRACE = 1.5  # a script begins no round after its time; it is killed after so many times that
LEAST_MINUTES = 0.5  # with less left a script is not begun


@dataclass(frozen=True)
class Job:
    """A script, how much of the time it may have, and what it is told in a rehearsal."""

    name: str
    share: float
    arguments: tuple[str, ...] = ()
    toy: tuple[str, ...] = ()


JOBS = (
    Job(
        "cube",
        0.27,
        ("--concurrency", "10", "100", "--rounds", "4", "--stress"),
        ("--concurrency", "2", "--rounds", "1", "--no-compile"),
    ),
    Job("roofline", 0.29, (), ("--batch", "2", "--rounds", "1", "--tokens", "10", "--no-compile")),
    Job("gap", 0.13, (), ("--rows", "2", "--rounds", "1", "--no-compile")),
    Job("profile", 0.15, (), ("--rows", "2", "--rounds", "1", "--no-compile")),
    Job("interpreter", 0.04, (), ("--steps", "20", "--rounds", "1")),
    Job(
        "ttft",
        0.12,
        (),
        (*("--rows", "2", "--rounds", "1", "--no-compile"), "--load", "0.5", "--seconds", "0.2"),
    ),
)


def command(job: Job, minutes: float, out: Path | None, *, toy: bool) -> list[str]:
    """What is run. In a rehearsal a script writes only where `out` says."""
    line = [sys.executable, "-m", f"benchmarks.gpu.{job.name}", "--minutes", f"{minutes:.2f}"]
    line += ["--toy", *job.toy] if toy else job.arguments
    if out is not None:
        line += ["--json", str(out / f"gpu_{job.name}.json")]
        if job.name == "profile":
            line += ["--costs", str(out)]
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """The number of scripts that did not end well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=28)
    names = [job.name for job in JOBS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=Path, help="folder for results and profiles")
    parser.add_argument("--toy", action="store_true", help="rehearse on a CPU with tiny models")
    given = parser.parse_args(argv)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    began = perf_counter()
    todo = [job for job in JOBS if job.name in given.only]
    whole = sum(job.share for job in todo)
    failed = 0
    for job in todo:
        left = given.minutes - (perf_counter() - began) / 60
        # What others did not use is shared out among those that are left.
        minutes = left * job.share / whole
        whole -= job.share
        if minutes < LEAST_MINUTES and not given.toy:
            print(f"== {job.name}: {left:.1f} minutes left, not begun", flush=True)
            failed += 1
            continue
        line = command(job, minutes, given.out, toy=given.toy)
        print(f"== {' '.join(line[1:])}", flush=True)
        seconds = min(minutes * GRACE, left) * 60
        try:
            code = subprocess.run(line, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
            print(f"== {job.name}: ended after {seconds:.0f} s; what it saved stays", flush=True)
        if code > 0:
            print(f"== {job.name}: failed with {code}; what it saved stays", flush=True)
        failed += code != 0
    print(f"== {len(todo) - failed} of {len(todo)} in {(perf_counter() - began) / 60:.1f} minutes")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
