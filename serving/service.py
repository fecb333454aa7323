"""The service: one engine, to which requests come, and from which they stream, from any thread.

Callers never wait for the engine, nor it for them: what they hand in goes into queues, and what
comes of it is put where they say. So any number of callers share one run of the plan, which a
thread drives (`driver.py`). What depends on other ranks is in `role.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ..executors.errors import left_behind
from ..graph.errors import StepweaveError, shortly
from ..nodes.values import GROUP
from ..requests.complaints import shown
from ..requests.increment import Deliver, Increment
from ..requests.request import FinishReason, RequestError, SamplingParams
from ..requests.spans import RequestSpan, span_of
from ..requests.table import RequestTable
from ..requests.totals import Totals
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarSpec
from .driver import Driver, Trace
from .engine import Engine, EngineError
from .flight import FlightRecorder
from .intake import Intake
from .prompts import Prompt, prompt_text
from .role import role_of
from .ticket import Ticket

if TYPE_CHECKING:
    from ..distributed.errors import GroupEnded

CLOSING_S = 10.0
"""How long `close` waits for the step that is under way."""

_SERVED: Final[tuple[FinishReason, ...]] = ("stop", "length")

RECENT = 256
"""Requests that have ended, of which a service remembers the spans."""


class Service:
    """Serves requests on one engine until it is closed. Every method may be called by any thread.

    Nothing of a caller runs on the thread that drives, but `deliver`, which must neither wait nor
    raise. Counts and spans are those of the service's life.
    """

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self.engine = engine
        self.intake = intake
        self.recent: deque[RequestSpan] = deque(maxlen=RECENT)
        self._uids = count()
        self._live: dict[int, Ticket] = {}  # by uid of each request that has not ended
        self._uncompiled: dict[Ticket, Future[CompiledGrammar]] = {}
        self._refusal: str | None = None  # why nothing more is taken in
        self._unbegun: dict[FinishReason, int] = {}  # requests that ended in no table
        self._role = role_of(engine.resource(GROUP), intake)
        self._driver = Driver(engine, self._role, self._run_failed)
        self._staying = ExitStack()
        self._role.on_end(self._group_ended)
        if self._role.stays:
            self._staying.enter_context(self.stay())

    # -- requests --------------------------------------------------------------------------

    def ticket(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        deliver: Deliver,
        *,
        id: str,
        cache_salt: bytes = b"",
    ) -> Ticket:
        """Make the requests of one prompt. Raises what cannot be served; nothing begins yet.

        Requests of one `cache_salt` share what the prefix cache knows, and no others.

        Raises:
            RequestError: the prompt, a parameter or a size that this engine cannot serve.
            GrammarError: a grammar that is wrong to begin with.
            ConfigError: a prompt whose keys are wrong.
            EngineError: the group of ranks has ended, or the service takes nothing in any more.
        """
        if self._refusal is not None:
            raise EngineError(self._refusal)
        if not isinstance(cache_salt, bytes):
            raise RequestError(f"cache_salt must be bytes, not {shown(cache_salt)}")
        line = self.intake.prompts.read(prompt, id)
        asked = self.intake.prompts.params(line, params)
        text = prompt_text(line)
        ticket = Ticket(id, text, (), deliver)
        ticket.requests = self.intake.requests(self._uids, id, text, line, asked, cache_salt)
        first = ticket.requests[0]
        refusal = self.table.refuse_reason(
            len(first.prompt_ids), first.params.max_tokens, first.window, first.attachments
        )
        if refusal is not None:
            raise RequestError(refusal, code="SW-LENGTH" if first.prompt_ids else None)
        if asked.grammar is not None:
            try:
                ticket.grammar = self._compiling(asked.grammar, asked.reasoning)
            except StepweaveError as error:
                if error is not self._role.ended:
                    raise
                raise EngineError(error.message) from error  # `_group_ended` is told of it later
        for request in ticket.requests:
            request.deliver = partial(self._delivered, ticket, request.uid)
        return ticket

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        deliver: Deliver,
        *,
        id: str,
        cache_salt: bytes = b"",
    ) -> Ticket:
        """Make the requests of one prompt and begin, unless too many wait already.

        Raises as `ticket`, and `RequestError` with code SW-QUEUE-FULL; `EngineError` where the
        service takes nothing in any more.
        """
        most = self.engine.limits.max_queue
        if self.queued >= most:
            raise RequestError(f"the queue is full ({most} requests wait)", code="SW-QUEUE-FULL")
        ticket = self.ticket(prompt, params, deliver, id=id, cache_salt=cache_salt)
        self.begin([ticket])
        return ticket

    def refused(self, failed: int, of: int) -> None:
        """Count prompts that never became a ticket, some of them because something was wrong."""
        self.engine.totals.requests += of
        self.engine.totals.failed_requests += failed

    def begin(self, tickets: Sequence[Ticket]) -> None:
        """Serve these, those with a grammar as soon as it is compiled. No limit applies.

        Raises `EngineError` where the service takes nothing in any more.
        """
        with self._driver.lock:
            if self._refusal is not None:
                raise EngineError(self._refusal)
            self.engine.totals.requests += len(tickets)
            for ticket in tickets:
                self._live |= dict.fromkeys((each.uid for each in ticket.requests), ticket)
            going = [each for each in tickets if each.grammar is not None or not _whole(each)]
            for ticket in going:
                if ticket.grammar is not None:
                    self.table.open()
                    self._uncompiled[ticket] = ticket.grammar
            self.table.submit_all(
                request for ticket in going if ticket.grammar is None for request in ticket.requests
            )
            self._driver.drive()
        serving = set(going)
        for ticket in tickets:
            if ticket not in serving:
                self._end(ticket)
            elif ticket.grammar is not None:
                ticket.grammar.add_done_callback(partial(self._compiled, ticket))
        self._role.begun(tickets)

    def cancel(self, ticket: Ticket, error: str | None = None) -> None:
        """End what has not ended, with this error if there is one; the outputs come as always."""
        with self._driver.lock:
            compiling = self._uncompiled.pop(ticket, None)
            if compiling is not None:
                self.table.close()
                self._end(ticket, error)
        if compiling is not None:
            compiling.cancel()  # nobody waits for it any more, unless another has asked for it too
            return
        for request in ticket.requests:
            self.table.cancel(request.uid, error)

    def _compiling(
        self, spec: GrammarSpec, reasoning: bool | None
    ) -> Future[CompiledGrammar] | None:
        """The grammar of a request, there when it may begin; None: another rank says when."""
        return self._role.grammar(spec, reasoning, self.intake.grammar(spec, reasoning))

    def _compiled(self, ticket: Ticket, future: Future[CompiledGrammar]) -> None:
        """Its grammar is there, or is not; on the thread that compiled it."""
        grammar = failure = None
        whole = _whole(ticket)  # what its grammar says of itself is all that it lacks
        try:
            grammar = future.result()
        except Exception as error:  # whatever a compiler raises concerns this request alone
            failure = f"{error}" or type(error).__name__
            if error is self._role.ended:
                ticket.failure = error
        with self._driver.lock:
            if self._uncompiled.pop(ticket, None) is None:
                return  # cancelled meanwhile
            for request in ticket.requests:
                request.grammar = grammar
            if failure is None and not whole:
                self.table.submit_all(ticket.requests)
            self.table.close()
            self._driver.drive()
        if failure is not None or whole:
            self._end(ticket, None if whole else failure)

    def _delivered(self, ticket: Ticket, uid: int, increment: Increment) -> None:
        """On the driver's thread, or that of whoever ends a request which never began."""
        # Who does not stream is told of its tokens by its output alone.
        output = increment.output
        if increment.token_ids or (output is not None and output.finish_reason in _SERVED):
            self._driver.progressed()
        if increment.output is not None:
            if self._live.pop(uid, None) is None:
                return  # it was given up meanwhile
            ticket.outputs[increment.index] = increment.output
            self.recent.append(span_of(ticket.requests[increment.index]))
            if ticket.ended and any(each.failed for each in ticket.outputs.values()):
                self.engine.totals.failed_requests += 1
        ticket.deliver(increment)

    def _end(self, ticket: Ticket, error: str | None = None) -> None:
        """End what is in no table: nobody else will. Without an error or a reason of its own it
        was cancelled.
        """
        for request in ticket.requests:
            if request.uid in self._live:
                own = request.finish_reason or "cancelled"
                request.finish_reason = reason = "error" if error else own
                with self._driver.lock:
                    self._unbegun[reason] = self._unbegun.get(reason, 0) + 1
                request.error = error
                request.moments.ended_s = perf_counter()
                self._role.ended_unbegun(self.table, request.uid, error)
                request.tell_end()

    # -- when the engine fails -------------------------------------------------------------

    def _run_failed(self, error: BaseException) -> Callable[[], None] | None:
        """All that was served has failed with it: what tells them so."""
        if left_behind(error):
            self._refusal = (
                f"a step did not end, and may still write: make a new one ({shortly(error)})"
            )
        hit = list(dict.fromkeys(self._live.values()))
        self._uncompiled, waiting = {}, self._uncompiled
        for _ in waiting:
            self.table.close()
        said = f"the engine's run has ended: {shortly(error)}"
        return partial(self._end_all, hit, error, said) if hit else None

    def _end_all(self, tickets: Sequence[Ticket], failure: BaseException, said: str) -> None:
        for ticket in tickets:
            ticket.failure = failure
            self._end(ticket, said)

    def _group_ended(self, failure: GroupEnded) -> None:
        """Nothing more can be served: whoever waits is told why."""
        with self._driver.lock:
            self._refusal = failure.message
            self._uncompiled = {}
            hit = list(dict.fromkeys(self._live.values()))
        self._end_all(hit, failure, failure.message)

    @property
    def failure(self) -> BaseException | None:
        """What ended the group of ranks, or else the latest run, if anything did."""
        return self._role.ended or self._driver.failure

    @property
    def alive(self) -> bool:
        """Whether it serves: its thread lives, and its latest runs and steps have not all failed.

        A failure that ends requests, and not what comes after them, is no death.
        """
        return self._role.ended is None and self._driver.alive

    # -- the ranks of a group --------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether requests are taken in here: on one rank alone, or on rank 0 of a group."""
        return self._role.leads

    def follow(self) -> None:
        """Serve what rank 0 serves, until it closes, and nothing that is handed in here.

        Raises `GroupEnded`, and `EngineError` on rank 0.
        """
        if self._role.following is None:
            raise EngineError("this rank leads, and others follow it: hand in requests here")
        self._role.following.alone()
        self.wait()
        if self.failure is not None:
            raise self.failure

    def on_group_end(self, tell: Callable[[GroupEnded], None]) -> None:
        """Have `tell` called, on any thread, when the group of ranks ends of which this is one."""
        self._role.on_end(tell)

    # -- the service's life ----------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """What it has done so far."""
        return self.engine.totals

    @property
    def running(self) -> int:
        """Requests that have a row now."""
        return len(self.table.request_slots.held)

    @property
    def queued(self) -> int:
        """Requests that wait for a row, or for their grammar."""
        return self.table.queued + len(self._uncompiled)

    @property
    def unended(self) -> int:
        """Requests that were taken in and have not ended."""
        return len(self._live)

    @property
    def table(self) -> RequestTable:
        """The requests that are being served, for those who look on: all else is the driver's."""
        return self._driver.table

    @property
    def ended(self) -> dict[FinishReason, int]:
        """How many requests have ended, by how; the n of one prompt each."""
        found = {**self.totals.ended}
        for reason, times in {**self._unbegun}.items():
            found[reason] = found.get(reason, 0) + times
        return found

    def spans(self, most: int) -> list[RequestSpan]:
        """So many of the requests that are being served, then of those that have ended; the
        latest of each first.
        """
        live = [*self._live.items()][-most:]
        found = [
            span_of(request)
            for uid, ticket in reversed(live)
            for request in ticket.requests
            if request.uid == uid
        ]
        return [*found, *reversed(self.recent.copy())][:most]

    def stay(self) -> AbstractContextManager[None]:
        """In the block one run goes on, though it be idle, so that the next request finds it."""
        return self._driver.stay()

    def traced(self, trace: Trace) -> AbstractContextManager[None]:
        """In the block runs are traced; afterwards `trace` has the report of the last of them.

        Runs begin anew at both ends: what is under way is computed again from what is settled.
        Raises `EngineError` where somebody else's trace is on.
        """
        return self._driver.traced(trace)

    @property
    def flight(self) -> FlightRecorder | None:
        """What notes the last steps, where somebody has asked for it."""
        return self._driver.flight

    def record(self, flight: FlightRecorder | None) -> None:
        """Have the steps of all runs noted from now on, but for those that are traced; or no more.

        A run that is on begins anew.
        """
        self._driver.record(flight)

    def renew(self) -> None:
        """Begin with an empty table, and so an empty prefix cache, of the engine's limits of now.

        Raises `EngineError` while requests are being served.
        """
        with self._driver.lock:
            if self._live or self.table.inbox.is_open:
                raise EngineError("requests are being served: renew the table when all have ended")
        self.wait()
        self._driver.renew()

    def refuse(self, why: str) -> None:
        """Take nothing in from now on; what was taken in is served to its end."""
        with self._driver.lock:  # whoever has begun by then is known to `cancel_all`
            self._refusal = why

    def cancel_all(self) -> None:
        """End everything that has not ended."""
        for ticket in dict.fromkeys([*self._live.values()]):
            self.cancel(ticket)

    def wait(self, seconds: float | None = None) -> bool:
        """Until the driver has no work, and nobody stays; whether it came to that in time."""
        return self._driver.wait(seconds)

    def rest(self) -> None:
        """Wait until the run is over, unless somebody else has requests in it, or stays.

        Raises what ended it when all had their outputs.
        """
        self._driver.rest()

    def close(self) -> None:
        """End everything, take nothing in, and end the processes that compile grammars."""
        self.refuse("this LLM is closed: make a new one")
        self.cancel_all()
        self._staying.close()
        # Rank 0 closes last: until then it may have requests for a rank that follows.
        self.wait(CLOSING_S if self.leads else None)
        self._role.leave()
        self.intake.close()


def _whole(ticket: Ticket) -> bool:
    """Whether it is of one request that came with its whole output: nothing is computed for it."""
    return ticket.requests[0].finish_reason is not None
