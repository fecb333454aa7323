"""Compilation beside the engine's loop: asked for on any thread, answered by a future.

Compiling takes milliseconds to seconds, a step takes milliseconds. So grammars are compiled by
workers, and a request is scheduled when its grammar is there. A slow grammar holds up the others
only once all workers are at slow ones, and then for no longer than the backend's time limit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter
from typing import Final

from .backend import CompiledGrammar, GrammarBackend
from .grammar import GrammarError, GrammarSpec

MAX_WAITING: Final = 1024
"""Grammars that may wait for a worker; more are refused, as the engine's queue refuses requests."""


class QueueFull(GrammarError):
    """Too many grammars wait to be compiled for another to be taken in: no fault of that one."""

    code = "SW-QUEUE-FULL"


OnCompiled = Callable[[float, bool], None]
"""Told of each compilation, on the thread that did it: seconds, and whether there is a grammar."""


class GrammarService:
    """Compiles grammars on threads of its own. Safe to call from several threads.

    A future is done with the grammar, or with what `GrammarBackend.compile` raised. Cancelling one
    keeps its grammar from being started, if nobody else has asked for it.

    Args:
        backend: compiles; from as many threads at once as there are workers.
        workers: compilations at once. A backend with a time limit needs as many processes.
        max_waiting: different grammars that may wait for a worker.

    Raises:
        ValueError: there is to be no worker.
    """

    def __init__(
        self, backend: GrammarBackend, workers: int = 1, max_waiting: int = MAX_WAITING
    ) -> None:
        if workers < 1:
            raise ValueError(f"at least one worker is needed, not {workers}")
        self.on_compiled: OnCompiled | None = None
        self._backend = backend
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._waiting: deque[GrammarSpec] = deque()
        self._asked: dict[GrammarSpec, list[Future[CompiledGrammar]]] = {}
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"grammar-{index}", daemon=True)
            for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """Ask for a grammar. Returns at once; a grammar that is cached is there already.

        Equal specs that are asked for while one is under way are compiled once.

        Raises:
            QueueFull: too many grammars wait.
            RuntimeError: the service is closed.
        """
        future: Future[CompiledGrammar] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the grammar service is closed")
            if spec in self._asked:
                self._asked[spec].append(future)
                return future
            if (ready := self._backend.cached(spec)) is not None:
                future.set_result(ready)
                return future
            if len(self._waiting) >= self._max_waiting:
                self._drop_cancelled()
            if len(self._waiting) >= self._max_waiting:
                raise QueueFull(
                    f"{spec.kind}: {len(self._waiting)} grammars wait to be compiled; try later"
                )
            self._asked[spec] = [future]
            self._waiting.append(spec)
            self._changed.notify()
        return future

    def close(self) -> None:
        """End the workers after what they are at; what still waits is cancelled."""
        with self._changed:
            self._closed = True
            dropped = [future for spec in self._waiting for future in self._asked.pop(spec)]
            self._waiting.clear()
            self._changed.notify_all()
        for future in dropped:
            future.cancel()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        while (spec := self._next()) is not None:
            compiled: CompiledGrammar | None = None
            error: BaseException | None = None
            began = perf_counter()
            try:
                compiled = self._backend.compile(spec)
            except BaseException as failure:  # whatever it is, it is the answer to this spec
                error = failure
            if self.on_compiled is not None:
                with suppress(Exception):  # an observer's fault: grammars are compiled all the same
                    self.on_compiled(perf_counter() - began, error is None)
            with self._changed:
                futures = self._asked.pop(spec)
            for future in futures:
                if not future.set_running_or_notify_cancel():
                    continue
                if compiled is not None:
                    future.set_result(compiled)
                else:
                    future.set_exception(error)

    def _drop_cancelled(self) -> None:
        """Forget what nobody wants any more; with the lock."""
        for spec in [each for each in self._waiting if not self._is_wanted(each)]:
            self._waiting.remove(spec)
            self._forget(spec)

    def _is_wanted(self, spec: GrammarSpec) -> bool:
        return not all(future.cancelled() for future in self._asked[spec])

    def _forget(self, spec: GrammarSpec) -> None:
        """Tell whoever waits for one of its futures that all of these are cancelled."""
        for future in self._asked.pop(spec):
            future.set_running_or_notify_cancel()

    def _next(self) -> GrammarSpec | None:
        """The next grammar that somebody still wants; None when the service is closed."""
        with self._changed:
            while True:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return None
                spec = self._waiting.popleft()
                if self._is_wanted(spec):
                    return spec
                self._forget(spec)
