"""Grammars are tried where trying them can be ended: in a process of its own, with limits.

A schema of a few kilobytes can keep a grammar compiler busy for minutes (a thousand optional
properties do), and a thread inside a library cannot be stopped. Servers that compiled in their own
process were blocked that way by single requests. The limits are on processor time and memory, not
on time as it passes: what is refused must not depend on what else the machine does. A library that
crashes takes only its trial along.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from .grammar import GrammarSpec
from .job import Job
from .reading import Library
from .refusal import SMALLER, Refusal

START_LIMIT_S: Final = 120.0
"""Seconds that a new process may take to import the library."""

STUCK_S: Final = 60.0
STUCK_SHARE: Final = 0.02
"""A trial that gets less than this share of a processor for a minute and more does not wait for a
processor, it is stuck: no machine is loaded that much."""

MEMORY_BYTES: Final = 1024**3
"""What one trial may take on top of the libraries. Compiling again may take the engine as much."""

NICE: Final = 10


class CompilerProcess:
    """Tries grammars one after another in a child process, which is started when first needed,
    stays, and is replaced if it dies. Safe to call from several threads.

    Args:
        library: what `compile_worker` calls it.
        settings: JSON values that the worker makes its compiler of.
        limit_s: seconds of processor time that one trial may take.
        memory_bytes: that one trial may take.
    """

    def __init__(
        self,
        library: Library,
        settings: Mapping[str, Any],
        limit_s: float,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._settings = {
            "library": library,
            "cpu_s": limit_s,
            "memory_bytes": memory_bytes,
            "nice": NICE,
            **settings,
        }
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False

    def run(self, spec: GrammarSpec, *, any_whitespace: bool, strict: bool) -> Job:
        """The job that a backend has to run for a grammar; it has run once, within the limits.

        Raises:
            Refusal: the library refuses the grammar, or a limit is exceeded.
            RuntimeError: the trial or the process died.
        """
        asked = {
            "kind": spec.kind,
            "source": spec.source,
            "any_whitespace": any_whitespace,
            "strict": strict,
        }
        limit_s = STUCK_S + self._limit_s / STUCK_SHARE
        with self._lock:
            try:
                answer = self._exchange(self._started(), asked, limit_s)
            except _Gone:
                if self._closing:
                    raise
                # Somebody has ended it: what a grammar does to a process, it does to a copy.
                answer = self._exchange(self._started(), asked, limit_s)
        if "job" in answer:
            return Job(**{**answer["job"], "warnings": tuple(answer["job"]["warnings"])})
        if "refused" in answer:
            raise Refusal(answer["refused"]["cause"], answer["refused"]["reasons"])
        if answer["ended"] == "time":
            raise Refusal(
                "limit",
                [
                    f"{spec.kind}: compiling takes more than {self._limit_s:g} s of processor "
                    f"time; {SMALLER}"
                ],
            )
        raise RuntimeError(DIED)

    def start(self) -> None:
        """Start the child process now, not for the first grammar: it can take seconds."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the child process, and what it is at. A later grammar would start another."""
        self._closing = True
        _kill(self._process)  # first: who is at it has the lock
        with self._lock:
            self._end()
            self._closing = False

    def __del__(self) -> None:
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, ready for a grammar; a new one if there is none or it has died."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.compile_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # One thread, as it is to fork; a session of its own, so that its copies end with it
                # and Ctrl-C is for the engine to answer.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            answer = self._exchange(self._process, self._settings, START_LIMIT_S)
            if "ended" in answer:
                self._end()
                raise RuntimeError(answer["ended"])
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], message: Mapping[str, Any], limit_s: float
    ) -> dict[str, Any]:
        try:
            _send(process, message)
            answer: dict[str, Any] = json.loads(_receive_line(process, limit_s))
        except TimeoutError:
            self._end()
            raise RuntimeError("the compiling process is stuck, and was ended") from None
        except (OSError, ValueError) as error:
            self._end()
            raise _Gone(DIED) from error
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # closing flushes what nobody reads any more
                        pipe.close()


class _Gone(RuntimeError):
    """The process has ended, or its pipes have."""


DIED: Final = "the compiling process died (out of memory?)"


class CompilerPool:
    """Several `CompilerProcess` of one kind: a grammar waits only if all of them are busy.

    Args:
        processes: at least one. The one used last is used first, so that no more are started than
            were ever needed at once. Raises `ValueError` if there is none.
    """

    def __init__(self, processes: list[CompilerProcess]) -> None:
        if not processes:
            raise ValueError("a pool needs at least one process")
        self._all = tuple(processes)
        self._idle: queue.LifoQueue[CompilerProcess] = queue.LifoQueue()
        for process in reversed(processes):
            self._idle.put(process)

    def run(self, spec: GrammarSpec, *, any_whitespace: bool, strict: bool) -> Job:
        """See `CompilerProcess.run`."""
        process = self._idle.get()
        try:
            return process.run(spec, any_whitespace=any_whitespace, strict=strict)
        finally:
            self._idle.put(process)

    def start(self) -> None:
        """Start all processes now."""
        for process in self._all:
            process.start()

    def close(self) -> None:
        """End all processes, and what they are at. A later grammar would start others."""
        for process in self._all:
            process.close()


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a process with its copies."""
    if process is not None and process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


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
