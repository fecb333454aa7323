"""`stepweave serve` as its users start it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stepweave.loadgen import started


@dataclass
class Process:
    """A running service: its address, and the file that its log goes to."""

    child: subprocess.Popen[str]
    url: str
    log: Path

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        return self.child.wait(120)


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """In the block `stepweave serve` with these arguments takes requests; port 0 is any."""
    log = folder / "log.jsonl"
    with log.open("w") as errors:
        child = subprocess.Popen(
            command_of(*arguments),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        )
    assert child.stdout is not None, "it was asked for"
    try:
        yield Process(child, _address(child.stdout, log), log)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(120)
        child.stdout.close()


def command_of(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stepweave", "serve", *arguments, "--port", "0"]


def _address(output: IO[str], log: Path) -> str:
    line = output.readline()
    assert line.startswith("serving "), f"it did not start: {line}{log.read_text()}"
    found = started._READY.search(line.encode())
    assert found, f"who starts a server does not know by this that it is ready: {line}"
    return found[1].decode()
