"""The service: one engine, to which requests come, and from which they stream, from any thread.

A thread of the service drives the engine while there is work, or for as long as somebody `stay`s.
Callers never wait for it, nor it for them: what they hand in goes into queues, and what comes of
it is put where they say. So any number of callers share one run of the plan.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import Literal

from ..distributed.errors import GroupEnded
from ..distributed.membership import Membership
from ..executors.report import RunReport
from ..graph.errors import shortly
from ..nodes.values import GROUP
from ..requests.increment import Deliver, Increment
from ..requests.request import (
    FinishReason,
    Request,
    RequestError,
    RequestOutput,
    SamplingParams,
)
from ..requests.spans import RequestLog, RequestSpan, span_of
from ..requests.step_counts import StepCounts
from ..requests.table import RequestTable
from ..requests.totals import Totals
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarError, GrammarSpec
from .engine import Engine, EngineError
from .everywhere import compiled_everywhere
from .flight import FlightRecorder
from .following import Following
from .intake import Intake
from .prompts import Prompt, prompt_text

CLOSING_S = 10.0
"""How long `close` waits for the step that is under way."""

RESTING_S = 0.01
"""How often a caller who waits for the run's end looks whether somebody else goes on with it."""

RECENT = 256
"""Requests that have ended, of which a service remembers the spans."""


FUTILE_RUNS = 3
"""How many runs in a row may end by an error, with no token between, before the engine is dead."""

FUTILE_STEPS = 5
"""How many steps may fail, with no token between, before it is: each has ended its requests."""


Blame = Literal["grammar", "engine"]
"""What made a request end with an error: its grammar could not be compiled, or a whole run failed.
"""


@dataclass(eq=False)
class Ticket:
    """One prompt that was handed in, and what becomes of it: n requests."""

    id: str
    prompt: str
    requests: Sequence[Request]
    deliver: Deliver
    grammar: Future[CompiledGrammar] | None = None  # without it they do not begin
    failure: BaseException | None = None  # what ended the engine's run, and these requests with it
    outputs: dict[int, RequestOutput] = field(default_factory=dict)  # of those that have ended

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.requests[0].prompt_ids)

    @property
    def n(self) -> int:
        """How many completions there will be: each has one increment with its output."""
        return len(self.requests)

    @property
    def ended(self) -> bool:
        """Whether every completion has its output."""
        return len(self.outputs) == len(self.requests)

    @property
    def blame(self) -> Blame | None:
        """What made it end with an error, if it was neither the request itself nor a step."""
        asked = self.grammar
        compiled = asked is not None and asked.done() and not asked.cancelled()
        if asked is not None and compiled and isinstance(asked.exception(), GrammarError):
            return "grammar"
        return "engine" if self.failure is not None else None

    def output(self) -> RequestOutput:
        """What it has come to; whatever has not ended counts as cancelled."""
        choices = tuple(
            self.outputs.get(request.index) or request.output() for request in self.requests
        )
        if len(choices) == 1:
            return choices[0]
        return replace(choices[0], id=self.id, choices=choices)


@dataclass
class Trace:
    """What is noted of runs while they are traced."""

    log: RequestLog
    counts: StepCounts = field(default_factory=StepCounts)
    report: RunReport = field(default_factory=lambda: RunReport(steps=0))
    ended: threading.Event = field(default_factory=threading.Event)  # no run is in it

    def __post_init__(self) -> None:
        self.ended.set()


class Service:
    """Serves requests on one engine until it is closed. Every method may be called by any thread.

    Nothing of a caller runs on the thread that drives, but `deliver`, which must neither wait nor
    raise. Counts and spans are those of the service's life.
    """

    def __init__(self, engine: Engine, intake: Intake) -> None:
        self.engine = engine
        self.intake = intake
        self.recent: deque[RequestSpan] = deque(maxlen=RECENT)
        self.failure: BaseException | None = None  # what ended the latest run, if anything did
        self._futile = 0  # runs that an error ended since a token was settled
        self._failed_steps = 0  # of the engine's life, when a token was last settled
        self._table = engine.new_table()  # lives on, and its prefix cache with it
        self._uids = count()
        self._live: dict[int, Ticket] = {}  # by uid of each request that has not ended
        self._uncompiled: dict[Ticket, Future[CompiledGrammar]] = {}
        # Reentrant: a signal handler may cancel while its own thread is inside.
        self._lock = threading.RLock()
        self._driver: threading.Thread | None = None
        self._refusal: str | None = None  # why nothing more is taken in
        self._closed = False
        self._trace: Trace | None = None
        self._flight: FlightRecorder | None = None
        self._unbegun: dict[FinishReason, int] = {}  # requests that ended in no table
        self._unheard: BaseException | None = None  # what failed when nobody was served
        self._group = engine.resource(GROUP)
        self._following: Following | None = None
        if self._group is not None:
            self._join(self._group)

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
        """
        line = self.intake.prompts.read(prompt, id)
        asked = self.intake.prompts.params(line, params)
        text = prompt_text(line)
        ticket = Ticket(id, text, (), deliver)
        ticket.requests = self.intake.requests(self._uids, id, text, line, asked, cache_salt)
        first = ticket.requests[0]
        refusal = self._table.refuse_reason(
            len(first.prompt_ids), first.params.max_tokens, first.window
        )
        if refusal is not None:
            raise RequestError(refusal, code="SW-LENGTH" if first.prompt_ids else None)
        if asked.grammar is not None:
            ticket.grammar = self._grammar(asked.grammar, asked.reasoning)
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
        with self._lock:
            if self._refusal is not None:
                raise EngineError(self._refusal)
            self.engine.totals.requests += len(tickets)
            for ticket in tickets:
                self._live |= dict.fromkeys((each.uid for each in ticket.requests), ticket)
            going = [each for each in tickets if each.requests[0].finish_reason is None]
            for ticket in going:
                if ticket.grammar is not None:
                    self._table.open()
                    self._uncompiled[ticket] = ticket.grammar
            self._table.submit_all(
                request for ticket in going if ticket.grammar is None for request in ticket.requests
            )
            self._drive()
        for ticket in tickets:
            if ticket not in going:  # of one request, which came with its whole output
                self._end(ticket)
            elif ticket.grammar is not None:
                ticket.grammar.add_done_callback(partial(self._compiled, ticket))
        if self._following is not None:
            self._following.ask(tickets)

    def cancel(self, ticket: Ticket, error: str | None = None) -> None:
        """End what has not ended, with this error if there is one; the outputs come as always."""
        with self._lock:
            if self._uncompiled.pop(ticket, None) is not None:
                self._table.close()
                self._end(ticket, error)
                return
        for request in ticket.requests:
            self._table.cancel(request.uid, error)

    def _compiled(self, ticket: Ticket, future: Future[CompiledGrammar]) -> None:
        """Its grammar is there, or is not; on the thread that compiled it."""
        grammar = failure = None
        try:
            grammar = future.result()
        except Exception as error:  # whatever a compiler raises concerns this request alone
            failure = f"{error}" or type(error).__name__
        with self._lock:
            if self._uncompiled.pop(ticket, None) is None:
                return  # cancelled meanwhile
            for request in ticket.requests:
                request.grammar = grammar
            if failure is None:
                self._table.submit_all(ticket.requests)
            self._table.close()
            self._drive()
        if failure is not None:
            self._end(ticket, failure)

    def _delivered(self, ticket: Ticket, uid: int, increment: Increment) -> None:
        """On the driver's thread, or that of whoever ends a request which never began."""
        if increment.token_ids:
            self._futile = 0
            self._failed_steps = self.engine.totals.failed_steps
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
                with self._lock:
                    self._unbegun[reason] = self._unbegun.get(reason, 0) + 1
                request.error = error
                request.moments.ended_s = perf_counter()
                if self._group is not None and self.leads:
                    self._table.cancel(request.uid, error)  # so that other ranks hear of it
                request.tell_end()

    # -- the thread that drives ------------------------------------------------------------

    def _drive(self) -> None:
        """Have a thread that runs the engine; with the lock."""
        if self._driver is None and not self._table.idle:
            self._driver = threading.Thread(target=self._run, name="stepweave-driver", daemon=True)
            self._driver.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                table, trace = self._table, self._trace
                table.resume()
                looks_on = trace or self._flight
                table.log = None if trace is None else trace.log
                table.counts = None if looks_on is None else looks_on.counts
                recorder = trace is not None or (self._flight is not None and self._flight.ops)
                if trace is not None:
                    trace.ended.clear()
            try:
                report = self.engine.run(table, trace=recorder)
            except BaseException as error:
                self._broken(error)
                if self._group is not None:
                    self._driver = None
                    return
            else:
                self.failure = None
                if trace is not None:
                    trace.report = report
            if trace is not None:
                trace.ended.set()
            with self._lock:
                if self._table.idle:
                    self._driver = None
                    return

    def _broken(self, error: BaseException) -> None:
        """A run has failed as a whole: all its requests end, and later ones find a new table.

        On one rank of a group it has failed for all.
        """
        if self._group is not None:
            self._group.group.end(f"rank {self._group.group.rank}: {shortly(error)}")
            return
        with self._lock:
            self.failure = error
            self._futile += 1
            old, self._table = self._table, self.engine.new_table()
            while old.inbox.is_open:
                old.close()
                self._table.open()
            hit = list(dict.fromkeys(self._live.values()))
            self._uncompiled, waiting = {}, self._uncompiled
            for _ in waiting:
                self._table.close()
        if not hit:
            self._unheard = error
            self._table.await_arrival()  # or a run that cannot begin would be tried without pause
        for ticket in hit:
            ticket.failure = error
            self._end(ticket, f"the engine's run has ended: {shortly(error)}")

    # -- the ranks of a group --------------------------------------------------------------

    def _join(self, group: Membership) -> None:
        """Run for as long as the group does, so that every rank is in the same run."""
        if not group.group.leads:
            self._following = Following(group, self.intake)
        self._table.open()
        group.group.on_end(self._group_ended)
        with self._lock:
            self._drive()

    def _grammar(self, spec: GrammarSpec, reasoning: bool | None) -> Future[CompiledGrammar] | None:
        """The compiled grammar of a request, on every rank of a group; None where rank 0 says when
        the request begins.
        """
        own = self.intake.grammar(spec, reasoning)
        if self._group is None:
            return own
        if self._following is not None:
            return None
        return compiled_everywhere(self._group.tasks, spec, reasoning, own)

    def _group_ended(self, failure: GroupEnded) -> None:
        """Nothing more can be served: whoever waits is told why."""
        with self._lock:
            self.failure, self._refusal = failure, failure.message
            self._futile = FUTILE_RUNS
            self._uncompiled = {}
            hit = list(dict.fromkeys(self._live.values()))
        for ticket in hit:
            ticket.failure = failure
            self._end(ticket, failure.message)

    @property
    def leads(self) -> bool:
        """Whether requests are taken in here: on one rank alone, or on rank 0 of a group."""
        return self._following is None

    def follow(self) -> None:
        """Serve what rank 0 serves, until it closes, and nothing that is handed in here.

        Raises `GroupEnded`, and `EngineError` on rank 0.
        """
        if self._following is None:
            raise EngineError("this rank leads, and others follow it: hand in requests here")
        self._following.alone()
        self.wait()
        if self.failure is not None:
            raise self.failure

    def _leave_group(self, group: Membership) -> None:
        if group.group.failure is None:
            if not self._closed:
                self._table.close()
            # Rank 0 closes last: until then it may have requests for this one.
            self.wait(None if self._following is not None else CLOSING_S)
        group.group.close()

    # -- the service's life ----------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """What it has done so far."""
        return self.engine.totals

    @property
    def alive(self) -> bool:
        """Whether it serves: its thread lives, and its latest runs and steps have not all failed.

        A failure that ends requests, and not what comes after them, is no death.
        """
        driver = self._driver
        failed = self.engine.totals.failed_steps - self._failed_steps
        works = self._futile < FUTILE_RUNS and failed < FUTILE_STEPS
        return works and (driver is None or driver.is_alive())

    @property
    def running(self) -> int:
        """Requests that have a row now."""
        return len(self._table.request_slots.held)

    @property
    def queued(self) -> int:
        """Requests that wait for a row, or for their grammar."""
        return self._table.queued + len(self._uncompiled)

    @property
    def unended(self) -> int:
        """Requests that were taken in and have not ended."""
        return len(self._live)

    @property
    def table(self) -> RequestTable:
        """The requests that are being served, for those who look on: all else is the driver's."""
        return self._table

    @contextmanager
    def stay(self) -> Iterator[None]:
        """In the block one run goes on, though it be idle, so that the next request finds it."""
        with self._lock:
            self._table.open()
            self._drive()
        try:
            yield
        finally:
            with self._lock:
                self._table.close()

    @contextmanager
    def traced(self, trace: Trace) -> Iterator[None]:
        """In the block runs are traced; afterwards `trace` has the report of the last of them.

        Runs begin anew at both ends: what is under way is computed again from what is settled.
        Raises `EngineError` where somebody else's trace is on.
        """
        with self._lock:
            if self._trace is not None:
                raise EngineError("this engine is being traced already: wait until that has ended")
            self._trace = trace
            self._table.leave()
        try:
            yield
        finally:
            with self._lock:
                self._trace = None
                self._table.leave()
            trace.ended.wait()

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

    @property
    def flight(self) -> FlightRecorder | None:
        """What notes the last steps, where somebody has asked for it."""
        return self._flight

    def record(self, flight: FlightRecorder | None) -> None:
        """Have the steps of all runs noted from now on, but for those that are traced; or no more.

        A run that is on begins anew.
        """
        with self._lock:
            self._flight = flight
            if self._trace is None:
                self._table.leave()

    def renew(self) -> None:
        """Begin with an empty table, and so an empty prefix cache, of the engine's limits of now.

        Raises `EngineError` while requests are being served.
        """
        with self._lock:
            if self._live or self._table.inbox.is_open:
                raise EngineError("requests are being served: renew the table when all have ended")
        self.wait()
        with self._lock:
            self._table = self.engine.new_table()

    def refuse(self, why: str) -> None:
        """Take nothing in from now on; what was taken in is served to its end."""
        self._refusal = why

    def cancel_all(self) -> None:
        """End everything that has not ended."""
        for ticket in dict.fromkeys([*self._live.values()]):
            self.cancel(ticket)

    def wait(self, seconds: float | None = None) -> bool:
        """Until the driver has no work, and nobody stays; whether it came to that in time."""
        driver = self._driver
        if driver is not None and driver is not threading.current_thread():
            driver.join(seconds)
        return self._driver is None

    def rest(self) -> None:
        """Wait until the run is over, unless somebody else has requests in it, or stays.

        Raises what ended it when all had their outputs.
        """
        driver = self._driver
        while driver is not None and driver is self._driver and self._table.idle:
            driver.join(RESTING_S)
        failure, self._unheard = self._unheard, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End everything, take nothing in, and end the processes that compile grammars."""
        self.refuse("this LLM is closed: make a new one")
        self.cancel_all()
        if self._group is None:
            self.wait(CLOSING_S)
        else:
            self._leave_group(self._group)
        self._closed = True
        self.intake.close()
