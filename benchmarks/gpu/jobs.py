"""Commands that share a budget of time: each in a process of its own, the next whatever happens."""

from __future__ import annotations

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
    """A script, how much of the time it may have, and what it is told in a rehearsal.

    `command`: what is run in place of a script of `benchmarks/gpu/`; it has no rehearsal, so that
    in one only its help is asked for. What it prints is written to `out` as it comes.
    """

    name: str
    share: float
    arguments: tuple[str, ...] = ()
    toy: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def line(self, minutes: float, out: Path | None, *, toy: bool) -> list[str]:
        """What is run. In a rehearsal a script writes only where `out` says."""
        if self.command:
            return [*self.command, *(("--help",) if toy else self.arguments)]
        line = [sys.executable, "-m", f"benchmarks.gpu.{self.name}", "--minutes", f"{minutes:.2f}"]
        line += ["--toy", *self.toy] if toy else self.arguments
        if out is not None:
            line += ["--json", str(out / f"gpu_{self.name}.json")]
            if self.name == "profile":
                line += ["--costs", str(out)]
        return line


def in_turn(todo: Sequence[Job], given_minutes: float, out: Path | None, *, toy: bool) -> int:
    """Run them; the number of those that did not end well.

    What one does not use of its time is shared out among those that are left.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    began = perf_counter()
    whole = sum(job.share for job in todo)
    failed = 0
    for job in todo:
        left = given_minutes - (perf_counter() - began) / 60
        minutes = left * job.share / whole
        whole -= job.share
        if minutes < LEAST_MINUTES and not toy:
            print(f"== {job.name}: {left:.1f} minutes left, not begun", flush=True)
            failed += 1
            continue
        line = job.line(minutes, out, toy=toy)
        print(f"== {' '.join(line[1:])}", flush=True)
        failed += _ended(job, line, min(minutes * GRACE, left) * 60, out) != 0
    print(f"== {len(todo) - failed} of {len(todo)} in {(perf_counter() - began) / 60:.1f} minutes")
    return failed


def _ended(job: Job, line: Sequence[str], seconds: float, out: Path | None) -> int:
    """The exit status of a job; -1 if it was ended at its limit."""
    kept = out / f"gpu_{job.name}.txt" if job.command and out is not None else None
    try:
        if kept is None:
            code = subprocess.run(line, timeout=seconds, check=False).returncode
        else:
            with kept.open("w") as said:
                code = subprocess.run(
                    line, timeout=seconds, check=False, stdout=said, stderr=subprocess.STDOUT
                ).returncode
    except subprocess.TimeoutExpired:
        code = -1
        print(f"== {job.name}: ended after {seconds:.0f} s; what it saved stays", flush=True)
    except OSError as error:
        code = 1
        print(f"== {job.name}: {error}", flush=True)
    if kept is not None and kept.exists():
        print(*kept.read_text(errors="replace").splitlines()[-12:], sep="\n", flush=True)
    if code > 0:
        print(f"== {job.name}: failed with {code}; what it saved stays", flush=True)
    return code
