"""A command that has started its ranks: the processes below it, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.distributed.launched import environment

LIMIT_S = 300
"""A time that does not pass in a test."""


@dataclass
class Command:
    """A command under way: `ranks` are the processes of its ranks, in their order."""

    child: subprocess.Popen[str]
    temporary: Path
    ranks: Sequence[int] = ()

    def line(self) -> str:
        """The next line that it prints; by then its ranks are there. Raises `AssertionError`."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, f"it ended: {self._errors()}"
        self.ranks = sorted(children(self.child.pid), key=_rank)
        return line

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.ranks[rank], number)

    def ended(self) -> tuple[int, str]:
        """The exit status, and what was said on standard error."""
        _, errors = self.child.communicate(timeout=LIMIT_S)
        return self.child.returncode, errors

    def left(self) -> list[str]:
        """What is there that was not before: processes of its ranks, and temporary files."""
        there = [f"process {pid}" for pid in self.ranks if Path(f"/proc/{pid}").exists()]
        return [*there, *(f"{each}" for each in self.temporary.iterdir())]

    def _errors(self) -> str:
        return self.child.communicate(timeout=LIMIT_S)[1]


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator[Command]:
    """In the block `stepweave ARGUMENTS` is under way; whatever of it is left then is killed."""
    temporary = folder / "temporary"
    temporary.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-m", "stepweave", *arguments],
        env={
            **environment(),
            "TMPDIR": f"{temporary}",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder / 'inductor'}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    found = Command(child, temporary)
    try:
        yield found
    finally:
        for pid in (child.pid, *found.ranks):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.communicate(timeout=LIMIT_S)


def children(pid: int) -> list[int]:
    """The processes that one has started and that have not ended."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for task in tasks for each in task.read_text().split()]


def _rank(pid: int) -> int:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(each[5:]) for each in variables if each.startswith(b"RANK="))
