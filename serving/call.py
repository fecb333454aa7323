"""One call of `generate`: its prompts are handed to a service, and its listeners told what comes.

All of it happens on the caller's thread, which waits for increments in a queue of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from queue import SimpleQueue

from ..configs.errors import ConfigError
from ..graph.raised import raised_at
from ..requests.complaints import shown
from ..requests.increment import Increment
from ..requests.request import Request, RequestError, RequestOutput, SamplingParams
from ..requests.totals import Totals
from ..structured.grammar import GrammarError
from .progress import progress_bar, watched
from .prompts import Prompt, id_and_text
from .service import Service
from .ticket import Ticket

OnText = Callable[[str, str], None]  # (id, piece)
OnProgress = Callable[[int, int], None]  # (prompts that have ended, tokens)
OnOutput = Callable[[RequestOutput], None]


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; `outputs` has what was settled, the rest is "cancelled"."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        super().__init__("interrupted")
        self.outputs = outputs


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Settled text of one prompt: `id` is that of its output, with n > 1 `id/index`.

    The last piece of each prompt has no text, and its `output`.
    """

    id: str
    text: str
    output: RequestOutput | None = None


@dataclass(frozen=True)
class Listeners:
    """Whom a call tells what, on the thread that called.

    An exception of `on_text` ends its request with an error; one of the others ends the call, and
    is raised by it. Raises `TypeError` for what is no function.
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
    def shown(self, progress: bool | None, total: int, totals: Totals) -> Iterator[Listeners]:
        """These, and in the block a progress bar; None: if somebody looks and nobody listens.

        `totals`: those that the call adds to.
        """
        if not isinstance(progress, bool | None):
            raise TypeError(f"progress must be true, false or None, not {shown(progress)}")
        listened = self.on_text is not None or self.on_progress is not None
        if progress is None:
            progress = watched() and not listened
        if not progress:
            yield self
            return
        with progress_bar(total, totals) as show:
            yield replace(self, on_progress=partial(_both, show, self.on_progress))


def _both(first: OnProgress, second: OnProgress | None, ended: int, tokens: int) -> None:
    first(ended, tokens)
    if second is not None:
        second(ended, tokens)


@dataclass
class _Job:
    """One prompt of a call: its ticket, or why it has none."""

    id: str
    prompt: str
    ticket: Ticket | None = None
    error: str | None = None  # of a prompt without a ticket, or of whoever listened
    told: int = 0  # completions whose output was taken out of the queue

    @property
    def ended(self) -> bool:
        return self.ticket is None or self.told == self.ticket.n

    def output(self) -> RequestOutput:
        """What it has come to; what has not ended, or not begun, counts as cancelled."""
        if self.ticket is not None:
            found = self.ticket.output()
            return found if self.error is None else _failed(found, self.error)
        if self.error is not None:
            return RequestOutput(self.id, self.prompt, "", (), "error", error=self.error)
        return RequestOutput(self.id, self.prompt, "", (), "cancelled")


@dataclass(eq=False)
class Call:
    """Prompts and their parameters, served together. `cancel` may come from any thread."""

    service: Service
    prompts: Sequence[Prompt]
    params: Sequence[SamplingParams | None]
    cancelled: bool = False
    _told: SimpleQueue[tuple[_Job, Increment]] = field(default_factory=SimpleQueue)
    _jobs: list[_Job] = field(default_factory=list)
    _left: int = 0  # outputs that will come

    @property
    def requests(self) -> list[Request]:
        """All that are to be served."""
        return [each for ticket in self._tickets for each in ticket.requests]

    def take_in(self) -> None:
        """Make the requests of every prompt; what cannot be served is noted with its prompt."""
        for index, prompt in enumerate(self.prompts):
            job = _Job(*id_and_text(prompt, index))
            self._jobs.append(job)
            if self.cancelled:
                continue
            deliver = partial(self._deliver, job)
            try:
                job.ticket = self.service.ticket(prompt, self.params[index], deliver, id=job.id)
            except (RequestError, GrammarError, ConfigError) as error:
                job.error = f"{error}"

    def outputs(self, listeners: Listeners) -> list[RequestOutput]:
        """Serve them, tell the listeners, and gather the outputs in the order of the prompts.

        Raises `Interrupted` on Ctrl-C, what a listener raises, and what ended the engine's run.
        """
        try:
            self._serve(listeners)
            self.service.rest()
        except KeyboardInterrupt:
            self._give_up()
            raise Interrupted(self._gathered()) from None
        except BaseException:
            self._give_up()
            raise
        return self._gathered()

    def pieces(self) -> Iterator[TextPiece]:
        """The same, as pieces of text; whoever reads no further cancels the call."""
        try:
            for job in self.begin():
                yield TextPiece(job.id, "", job.output())
            for job, increment in self._increments():
                if increment.text:
                    yield TextPiece(increment.id, increment.text)
                if job.ended and increment.output is not None:
                    yield TextPiece(job.id, "", job.output())
        finally:
            self._give_up()

    def cancel(self) -> None:
        """End what runs, do not wait for grammars any more, and begin nothing."""
        self.cancelled = True
        for ticket in self._tickets:
            self.service.cancel(ticket)

    def begin(self, *, streams: bool = True) -> list[_Job]:
        """Hand everything in that can be served; those that have ended already.

        `streams`: somebody wants to know of each step, and not of outputs alone.
        """
        if not self._jobs:
            self.take_in()
        for request in self.requests:
            request.streams = streams
        if self.cancelled:
            for job in self._jobs:
                job.ticket = None
        else:
            self.service.begin(self._tickets)
            self._left = sum(each.n for each in self._tickets)
            if self.cancelled:  # meanwhile, when nothing could be cancelled
                self.cancel()
        refused = [job for job in self._jobs if job.ticket is None]
        self.service.refused(sum(job.error is not None for job in refused), len(refused))
        return refused

    @property
    def _tickets(self) -> list[Ticket]:
        return [job.ticket for job in self._jobs if job.ticket is not None]

    def _deliver(self, job: _Job, increment: Increment) -> None:
        self._told.put((job, increment))

    def _increments(self) -> Iterator[tuple[_Job, Increment]]:
        """Until all have ended."""
        while self._left:
            job, increment = self._told.get()
            if increment.output is not None:
                self._left -= 1
                job.told += 1
            yield job, increment

    def _give_up(self) -> None:
        """Cancel, and wait until that is done: nothing of the call is in the engine then."""
        self.cancel()
        for _ in self._increments():
            pass
        self.service.rest()

    def _serve(self, listeners: Listeners) -> None:
        ended, tokens = 0, 0

        def tell(job: _Job) -> None:
            nonlocal ended
            ended += 1
            if listeners.on_output is not None:
                listeners.on_output(job.output())
            if listeners.on_progress is not None:
                listeners.on_progress(ended, tokens)

        streams = listeners.on_text is not None or listeners.on_progress is not None
        for job in self.begin(streams=streams):
            tell(job)
        for job, increment in self._increments():
            if increment.text and listeners.on_text is not None and job.error is None:
                try:
                    listeners.on_text(increment.id, increment.text)
                except Exception as error:
                    assert job.ticket is not None, "only what is served has text"
                    said = f"{type(error).__name__}: {error}{raised_at(error)}"
                    job.error = f"`on_text` raised {said}"
                    self.service.cancel(job.ticket, job.error)
            if increment.token_ids and listeners.on_progress is not None:
                tokens += len(increment.token_ids)
                listeners.on_progress(ended, tokens)
            if job.ended and increment.output is not None:
                tell(job)

    def _gathered(self) -> list[RequestOutput]:
        for ticket in self._tickets:
            if ticket.failure is not None:
                raise ticket.failure
        return [job.output() for job in self._jobs]


def _failed(output: RequestOutput, error: str) -> RequestOutput:
    """An output whose listener failed, though it may have ended before that."""
    if output.finish_reason == "error":
        return output
    choices = output.choices and tuple(_failed(each, error) for each in output.choices)
    return replace(output, finish_reason="error", error=error, choices=choices)
