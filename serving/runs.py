"""One call of `generate`: its prompts, what of them still waits for a grammar, what has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial

from ..requests.complaints import shown
from ..requests.request import Request, RequestError, RequestOutput
from ..requests.table import RequestTable
from ..structured.backend import CompiledGrammar
from .caller_queue import CallerQueue
from .progress import progress_bar, watched

OnText = Callable[[str, str], None]  # (id, piece)
OnProgress = Callable[[int, int], None]  # (prompts that have ended, tokens)
OnOutput = Callable[[RequestOutput], None]


@dataclass
class Job:
    """One prompt of a run: its requests (n of them), or why there are none."""

    id: str
    prompt: str
    requests: list[Request] = field(default_factory=list)
    error: str | None = None

    @property
    def ended(self) -> bool:
        if self.error is not None:
            return True
        return bool(self.requests) and all(request.phase == "done" for request in self.requests)

    @property
    def failed(self) -> bool:
        errors = (self.error, *(request.error for request in self.requests))
        return any(error is not None for error in errors)

    def output(self) -> RequestOutput:
        """What it has come to; whatever has not ended counts as cancelled."""
        if self.error is not None:
            return RequestOutput(self.id, self.prompt, "", (), "error", error=self.error)
        if not self.requests:
            return RequestOutput(self.id, self.prompt, "", (), "cancelled")
        choices = tuple(request.output() for request in self.requests)
        if len(choices) == 1:
            return choices[0]
        return replace(choices[0], id=self.id, choices=choices)


@dataclass(frozen=True)
class Listeners:
    """Whom a run tells what. Calls of one run never overlap.

    An exception of `on_text` ends its request with an error; one of the others ends the run, and
    is raised by it. Raises `TypeError` for a listener that cannot be called, and in `shown` for a
    `progress` of another type.
    """

    on_text: OnText | None = None
    on_progress: OnProgress | None = None
    on_output: OnOutput | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            listener = getattr(self, each.name)
            if listener is not None and not callable(listener):
                raise TypeError(f"{each.name} must be a function, not {shown(listener)}")

    @contextmanager
    def shown(self, progress: bool | None, total: int) -> Iterator[Listeners]:
        """These, and in the block a progress bar; None: if somebody looks and nobody listens."""
        if not isinstance(progress, bool | None):
            raise TypeError(f"progress must be true, false or None, not {shown(progress)}")
        listened = self.on_text is not None or self.on_progress is not None
        if progress is None:
            progress = watched() and not listened
        if not progress:
            yield self
            return
        with progress_bar(total) as show:
            yield replace(self, on_progress=partial(_both, show, self.on_progress))


def _both(first: OnProgress, second: OnProgress | None, ended: int, tokens: int) -> None:
    first(ended, tokens)
    if second is not None:
        second(ended, tokens)


class Run:
    """Serves jobs on a table. `cancel` may come at any time, also from a signal handler."""

    def __init__(
        self, table: RequestTable, jobs: Sequence[Job], listeners: Listeners, turns: CallerQueue
    ) -> None:
        self.table = table
        self.cancelled = False
        self._jobs = jobs
        self._listeners = listeners
        self._turns = turns
        self._tokens = 0
        self._raised: Exception | None = None  # by a listener
        self._untold = {id(job): job for job in jobs}  # the listener does not know of their end
        self._uncompiled: dict[int, Job] = {}  # by id(), each with one opening of the table
        # Reentrant: a signal handler may cancel while its own thread holds them.
        self._lock = threading.RLock()
        self._telling = threading.RLock()  # taken before the other one, never after it

    @property
    def requests(self) -> list[Request]:
        """Every request that is to be served, whether its grammar is there or not."""
        return [request for job in self._jobs if job.error is None for request in job.requests]

    def check(self, job: Job) -> None:
        """Raises `RequestError` for what this engine can never serve."""
        first = job.requests[0]
        refusal = self.table.refuse_reason(
            len(first.prompt_ids), first.params.max_tokens, first.window
        )
        if refusal is not None:
            raise RequestError(refusal)

    def start(self, waiting: Sequence[tuple[Job, Future[CompiledGrammar]]]) -> bool:
        """Submit what is ready; the rest when its grammar is, from the thread that compiled it.

        False if there is nothing to serve.
        """
        for job in self._jobs:
            if job.ended:
                self._tell(job)
            for request in job.requests:
                self._follow(job, request)
        with self._lock:
            if self.cancelled:
                return False
            self._uncompiled = {id(job): job for job, _ in waiting}
            for _ in waiting:
                self.table.open()
            self.table.submit_all(
                request
                for job in self._jobs
                if job.error is None and id(job) not in self._uncompiled
                for request in job.requests
            )
        for job, future in waiting:
            future.add_done_callback(partial(self._compiled, job))
        return bool(self.requests)

    def cancel(self) -> None:
        """End what runs, do not wait for grammars any more, and begin nothing."""
        with self._lock:
            self.cancelled = True
            while self._uncompiled:
                self._uncompiled.popitem()
                self.table.close()
        for request in self.requests:
            self.table.cancel(request.uid)

    def finish(self) -> list[RequestOutput]:
        """The outputs, when nothing runs any more; raises what a listener has raised."""
        for job in self._jobs:
            self._tell(job)
        if self._raised is not None:
            raise self._raised
        return [job.output() for job in self._jobs]

    def _follow(self, job: Job, request: Request) -> None:
        if self._listeners.on_text is not None:
            request.on_text = partial(self._text, self._listeners.on_text, request.id)
        if self._listeners.on_progress is not None:
            request.on_settled = self._settled
        request.on_ended = partial(self._ended, job)

    def _compiled(self, job: Job, future: Future[CompiledGrammar]) -> None:
        grammar = failure = None
        try:
            grammar = future.result()
        except Exception as error:  # whatever a compiler raises concerns this request alone
            failure = f"{error}" or type(error).__name__
        with self._lock:
            if self._uncompiled.pop(id(job), None) is None:
                return  # cancelled meanwhile
            for request in job.requests:
                request.grammar = grammar
            if failure is None:
                self.table.submit_all(job.requests)
            job.error = failure
            self.table.close()
        if job.ended:
            self._tell(job)

    # -- listeners -------------------------------------------------------------------------

    def _text(self, on_text: OnText, request_id: str, piece: str) -> None:
        with self._turns.calling_back():
            on_text(request_id, piece)

    def _settled(self, request: Request, new: int) -> None:
        with self._telling:
            self._tokens += new
            self._progress()

    def _ended(self, job: Job, request: Request) -> None:
        if job.ended:
            self._tell(job)

    def _tell(self, job: Job) -> None:
        """Of its end, once."""
        with self._telling:
            if self._untold.pop(id(job), None) is None:
                return
            if self._listeners.on_output is not None:
                self._call(partial(self._listeners.on_output, job.output()))
            self._progress()

    def _progress(self) -> None:
        if self._listeners.on_progress is not None:
            ended = len(self._jobs) - len(self._untold)
            self._call(partial(self._listeners.on_progress, ended, self._tokens))

    def _call(self, listener: Callable[[], None]) -> None:
        if self._raised is not None:
            return  # it is ending
        try:
            with self._turns.calling_back():
                listener()
        except Exception as error:
            self._raised = error
            self.cancel()
