"""Compilation that ends: in a process of its own, killed when its time is up.

A schema of a few kilobytes can keep a grammar compiler busy for minutes (a thousand optional
properties do), and a thread inside a library cannot be stopped. Servers that compiled in their own
process were blocked that way by single requests.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import xgrammar as xgr

from .grammar import GrammarError
from .xgrammar_compile import Job

START_LIMIT_S: Final = 120.0
"""Seconds that a new process may take to import the library, before the first job's time."""


class CompilerProcess:
    """Compiles jobs one after another in a child process, which is started when first needed,
    stays, and is replaced after it had to be killed. Safe to call from several threads.

    Args:
        tokenizer_info: the library's `TokenizerInfo`.
        limit_s: seconds that one compilation may take.
        cache_bytes: compiled grammars kept, least recently used go first.
        threads: of one compilation.
    """

    def __init__(self, tokenizer_info: Any, limit_s: float, cache_bytes: int, threads: int) -> None:
        self._tokenizer_info = tokenizer_info
        self._limit_s = limit_s
        self._cache_bytes = cache_bytes
        self._threads = threads
        self._cache: OrderedDict[Job, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, job: Job) -> Any:
        """The compiled grammar.

        Raises:
            GrammarError: the limit is exceeded.
            RuntimeError: the library refused the grammar, in its words, or the process died.
        """
        with self._lock:
            if job in self._cache:
                self._cache.move_to_end(job)
                return self._cache[job]
            answer = self._exchange(self._started(), asdict(job), self._limit_s)
            if "error" in answer:
                raise RuntimeError(answer["error"])
            grammar = xgr.CompiledGrammar.deserialize_json(answer["grammar"], self._tokenizer_info)
            self._cache[job] = grammar
            while len(self._cache) > 1 and self._cached_bytes() > self._cache_bytes:
                self._cache.popitem(last=False)
            return grammar

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

    def _cached_bytes(self) -> int:
        return sum(int(grammar.memory_size_bytes) for grammar in self._cache.values())

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
            settings = {
                "tokenizer": self._tokenizer_info.serialize_json(),
                "threads": self._threads,
                "limit_s": self._limit_s,
            }
            # Answered once the library is imported: the start is not part of the first job's time.
            self._exchange(self._process, settings, START_LIMIT_S)
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], message: dict[str, Any], limit_s: float
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


def _send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
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
