"""Compilation that ends: in a process of its own, killed when its time is up.

A schema of a few kilobytes can keep a grammar compiler busy for minutes (a thousand optional
properties do), and a thread inside a library cannot be stopped. Servers that compiled in their own
process were blocked that way by single requests. The process also has a limit on its memory, and a
library that crashes takes only this process along.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from .grammar import GrammarError

START_LIMIT_S: Final = 120.0
"""Seconds that a new process may take to import the library, before the first job's time."""

MEMORY_BYTES: Final = 2 * 1024**3
"""Address space that compilation may take on top of what the libraries take when imported."""


class CompilerProcess:
    """Runs jobs one after another in a child process, which is started when first needed, stays,
    and is replaced after it had to be killed. Safe to call from several threads.

    Args:
        library: "xgrammar" or "llguidance"; what `compile_worker` calls it.
        settings: JSON values that the worker makes its compiler of.
        limit_s: seconds that one job may take.
        threads: of one compilation; its processor time is limited to `threads * limit_s`.
        memory_bytes: that one process may take for its jobs.
    """

    def __init__(
        self,
        library: str,
        settings: Mapping[str, Any],
        limit_s: float,
        threads: int = 1,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._settings = {
            "library": library,
            "threads": threads,
            "cpu_s": limit_s * threads,
            "memory_bytes": memory_bytes,
            **settings,
        }
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, job: Mapping[str, Any]) -> Any:
        """The worker's result, a JSON value.

        Raises:
            GrammarError: the limit is exceeded.
            RuntimeError: the library refused the grammar, in its words, or the process died.
        """
        with self._lock:
            answer = self._exchange(self._started(), job, self._limit_s)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def start(self) -> None:
        """Start the child process now, which takes seconds, rather than for the first job."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the child process. A later job would start another."""
        with self._lock:
            self._kill()

    def __del__(self) -> None:
        self._kill()

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, ready for a job; a new one if there is none or it has died."""
        if self._process is None or self._process.poll() is not None:
            self._kill()
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.compile_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            # Answered once the library is imported: the start is not part of the first job's time.
            answer = self._exchange(self._process, self._settings, START_LIMIT_S)
            if "error" in answer:
                self._kill()
                raise RuntimeError(answer["error"])
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], message: Mapping[str, Any], limit_s: float
    ) -> dict[str, Any]:
        try:
            _send(process, message)
            answer: dict[str, Any] = json.loads(_receive_line(process, limit_s))
        except TimeoutError:
            self._kill()
            raise GrammarError(
                f"compiling took longer than {limit_s:g} s and was stopped; make it smaller "
                "(fewer optional properties, alternatives or bounded repetitions)"
            ) from None
        except (OSError, ValueError) as error:
            self._kill()
            raise RuntimeError("the compiling process died (out of memory?)") from error
        return answer

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # closing flushes what nobody reads any more
                        pipe.close()


class CompilerPool:
    """Several `CompilerProcess` of one kind: a job waits only if all of them are busy.

    Args:
        processes: at least one. The one used last is used first, so that no more are started than
            were ever needed at once.
    """

    def __init__(self, processes: list[CompilerProcess]) -> None:
        if not processes:
            raise ValueError("a pool needs at least one process")
        self._all = tuple(processes)
        self._idle: queue.LifoQueue[CompilerProcess] = queue.LifoQueue()
        for process in reversed(processes):
            self._idle.put(process)

    def run(self, job: Mapping[str, Any]) -> Any:
        """See `CompilerProcess.run`."""
        process = self._idle.get()
        try:
            return process.run(job)
        finally:
            self._idle.put(process)

    def start(self) -> None:
        """Start all processes now."""
        for process in self._all:
            process.start()

    def close(self) -> None:
        """End all processes, after their running jobs. A later job would start others."""
        for process in self._all:
            process.close()


def _send(process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
    assert process.stdin is not None, "the process was started with a pipe"
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _receive_line(process: subprocess.Popen[bytes], limit_s: float) -> bytes:
    assert process.stdout is not None, "the process was started with a pipe"
    deadline = time.monotonic() + limit_s
    received = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not received.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), 1 << 20)  # past any buffer, so select is true
            if not chunk:
                raise OSError("the compiling process ended")
            received += chunk
    return bytes(received)
