"""Three calls for a GPU that is lent for minutes: what is right first, then what is fast.

1. **right**: the kernels' tests, kernels against plain torch with equal tokens and counts, a
   traced and a captured run, the tests of streams, and compute-sanitizer where it is installed.
2. **fast**: the 8B roofline at batch 1, 8 and 32, and the gap between consecutive device work.
3. **cube**: asynchronous scheduling × speculation × grammars with 128 rows. The drafter's passes
   are a chain on its own cache, all of them computed; which drafts are right is chosen.

Each call ends within its minutes, and each part of it is saved when it is done, so that a call that
is cut off loses one part. A card of 80 GB holds the cube of the 1B model: `--model 1b`.
`wheels.txt` lists what a machine without a network needs.

    python -m benchmarks.gpu.kit right|fast|cube [--minutes 9] [--model 8b] [--out DIR] [--toy]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .jobs import Job, in_turn
from .networks import SIZES

PYTEST = (sys.executable, "-m", "pytest")
ON_A_GPU = ("-m", "gpu", "-v", "-n", "0", "--maxfail=40", "--tb=short")
KERNELS = ("tests/models/test_kernels_cuda.py", "tests/sampling/test_kernels_cuda.py")
MEMCHECK = ("--tool", "memcheck", "--error-exitcode", "9", *PYTEST)
FEW = ("every_width and bfloat16 and 128 or softmax and (3 or 7)",)


def calls(model: str) -> dict[str, tuple[Job, ...]]:
    """The jobs of each call."""
    quick = ("--rounds", "1", "--no-compile")
    return {
        "right": (
            Job("kernels", 0.28, (*ON_A_GPU, *KERNELS), command=PYTEST),
            Job("smoke", 0.27),
            Job("streams", 0.3, (*ON_A_GPU, "tests/gpu"), command=PYTEST),
            *sanitizer(),
        ),
        "fast": (
            Job(
                "roofline",
                0.7,
                ("--models", model, "--batch", "1", "8", "32", "--rounds", "4"),
                ("--batch", "2", "--tokens", "10", *quick),
            ),
            Job("gap", 0.3, ("--model", model, "--rounds", "4"), ("--rows", "2", *quick)),
        ),
        "cube": (
            Job(
                "cube",
                1.0,
                ("--model", model, "--concurrency", "128", "--requests", "160", "--rounds", "2"),
                ("--concurrency", "2", *quick),
            ),
        ),
    }


def sanitizer() -> tuple[Job, ...]:
    """A few launches of the kernels under compute-sanitizer; none where that is not installed."""
    found = shutil.which("compute-sanitizer")
    if found is None:
        return ()
    arguments = (*MEMCHECK, *ON_A_GPU, "-k", *FEW, KERNELS[0])
    return (Job("sanitizer", 0.15, arguments, command=(found,)),)


def main(argv: Sequence[str] | None = None) -> int:
    """The number of parts that did not end well."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.kit", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("call", choices=["right", "fast", "cube"])
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--model", choices=sorted(SIZES), default="8b")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts of the call")
    parser.add_argument("--out", type=Path, help="folder for results; default: results/")
    parser.add_argument("--toy", action="store_true", help="rehearse on a CPU with tiny models")
    given = parser.parse_args(argv)
    jobs = calls(given.model)[given.call]
    names = [job.name for job in jobs]
    if unknown := sorted({*(given.only or names)} - {*names}):
        parser.error(f"{given.call} has no part {unknown[0]!r}; it has {', '.join(names)}")
    todo = [job for job in jobs if job.name in (given.only or names)]
    return in_turn(todo, given.minutes, given.out, toy=given.toy)


if __name__ == "__main__":
    raise SystemExit(main())
