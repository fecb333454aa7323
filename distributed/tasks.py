"""Work that every rank does for itself beside the steps, such as compiling a grammar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

from .errors import GroupEnded
from .frames import Message
from .group import Group

Do = Callable[[Mapping[str, Any]], "Future[str]"]
"""Begins a task; its future gets a text that is to be the same on every rank, or an exception."""


class TaskFailed(Exception):
    """A task came to something else on another rank."""


class Tasks:
    """Rank 0 has tasks done on every rank, and hears when they are."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, _Everywhere] = {}
        self._do: Do | None = None
        self._early: list[Message] = []  # before anybody does them
        group.on("task", self._begin)
        group.on("done", self._done)
        group.on_end(self._fail)

    def serve(self, do: Do) -> None:
        """Do the tasks of rank 0 from now on, and those that came before."""
        with self._lock:
            self._do, early, self._early = do, self._early, []
        for message in early:
            self._begin(0, message)

    def everywhere(self, task: Mapping[str, Any], own: Future[str]) -> Future[None]:
        """On rank 0, which does it as `own`: when every rank has done it, and to the same.

        The future has the exception of rank 0, `TaskFailed` where only another has one, or
        `GroupEnded`.
        """
        number = next(self._numbers)
        everywhere = _Everywhere(self._group.size)
        with self._lock:
            self._waiting[number] = everywhere
        self._group.send({"kind": "task", "number": number, "task": dict(task)})
        waits = ExitStack()
        waits.enter_context(self._group.meeting("having a task done on every rank"))
        everywhere.future.add_done_callback(lambda future: waits.close())
        everywhere.future.add_done_callback(lambda future: self._forget(number))

        def done(future: Future[str]) -> None:
            error = future.exception()
            everywhere.add(0, error if error is not None else future.result())

        own.add_done_callback(done)
        return everywhere.future

    def _begin(self, rank: int, message: Message) -> None:
        with self._lock:
            if self._do is None:
                self._early.append(message)
                return
            do = self._do
        number, task = int(message["number"]), dict(message["task"])
        try:
            future = do(task)
        except Exception as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, future: Future[str]) -> None:
        error = future.exception()
        said = {"error": f"{error}"} if error is not None else {"result": future.result()}
        try:
            self._group.send({"kind": "done", "number": number, **said})
        except GroupEnded:
            return

    def _done(self, rank: int, message: Message) -> None:
        number = int(message["number"])
        with self._lock:
            everywhere = self._waiting[number]
        failed = "error" in message
        text = str(message["error" if failed else "result"])
        everywhere.add(rank, TaskFailed(f"rank {rank}: {text}") if failed else text)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)

    def _fail(self, failure: GroupEnded) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for everywhere in waiting.values():
            everywhere.give_up(failure)


class _Everywhere:
    """What the ranks have said of one task so far."""

    def __init__(self, size: int) -> None:
        self.future: Future[None] = Future()
        self._size = size
        self._lock = threading.Lock()
        self._found: dict[int, str | BaseException] = {}

    def add(self, rank: int, said: str | BaseException) -> None:
        with self._lock:
            self._found[rank] = said
            if len(self._found) < self._size or self.future.done():
                return
            answers = [self._found[each] for each in range(self._size)]
            failures = [each for each in answers if isinstance(each, BaseException)]
            if failures:
                self.future.set_exception(failures[0])
            elif len(set(answers)) > 1:
                said_by = "; ".join(f"rank {each}: {what}" for each, what in enumerate(answers))
                self.future.set_exception(TaskFailed(f"ranks came to different results: {said_by}"))
            else:
                self.future.set_result(None)

    def give_up(self, failure: BaseException) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_exception(failure)
