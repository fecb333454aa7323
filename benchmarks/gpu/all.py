"""All GPU benchmarks in order of value, each in a process of its own, within a budget of time.

Each saves after every part. So a run that is cut off, or a script that fails, loses little; the
others go on.

    python -m benchmarks.gpu.all [--minutes 28] [--only cube roofline …] [--out DIR] [--toy]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .jobs import Job, in_turn

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


def main(argv: Sequence[str] | None = None) -> int:
    """The number of scripts that did not end well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=28)
    names = [job.name for job in JOBS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=Path, help="folder for results and profiles")
    parser.add_argument("--toy", action="store_true", help="rehearse on a CPU with tiny models")
    given = parser.parse_args(argv)
    todo = [job for job in JOBS if job.name in given.only]
    return in_turn(todo, given.minutes, given.out, toy=given.toy)


if __name__ == "__main__":
    raise SystemExit(main())
