"""The request table: who waits, who runs, on which row and blocks, and who has ended.

This is the `requests` state of the step graph. Only ops that declare it call these methods, so
it needs no lock. What other threads may call is marked so, and goes to the inbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter

from ..policies.chosen import Policies
from ..policies.resumption import LeavingView
from ..policies.windows import Window
from ..structured.in_use import GrammarsInUse
from .attachments import Attachment, Room
from .batch import ScheduledRow, StepBatch
from .blocks import ONE_CLASS, BlockManager
from .census import Census
from .decisions import Decisions
from .encodings import Encodings
from .inbox import Inbox
from .limits import Limits
from .pacer import Pacer
from .pools import KeyPool, Leases
from .request import FinishReason, Request
from .spans import RequestLog
from .step_counts import StepCount, StepCounts, step_mode
from .step_rows import StepRows
from .step_times import StepTimes
from .totals import Totals
from .window_gains import WindowGains
from .witness import Witness

__all__ = ["Limits", "RequestTable"]

IDLE_WAIT_S = 1.0
"""How long an open table waits for requests before it lets an empty step pass.

The pause must end now and then: an executor that is told to stop, or that watches for steps that
never end, hears of it between two steps.
"""


BATCHES_KEPT = 256
"""Steps of a run whose requests are remembered, to know whom a failing step concerns.

More than any executor lets a step be ahead of another.
"""


class RequestTable:
    """All requests of an engine, and the rows and KV blocks they hold.

    `prefix_cache`, `cache_tail`, `sliding_window`, `host_blocks`, `forks` and `copies` are those of
    `BlockManager`. `room`: how much can be encoded that requests bring beside tokens, in pages with
    `page_leases`.
    `policies` decide when steps are scheduled, who runs and who gives way. `apart`: after how many
    steps a row that decodes finds what its last step handed on. In `grammars` are those of the
    requests that are being served: batches name them by the request. What is settled is counted in
    `totals`. Requests come by `inbox`, by default one of its own. A `witness` compares what steps
    come to with what they come to elsewhere. `learning` is that of its `StepTimes`.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        learning: Callable[[], int] | None = None,
        slot_leases: Leases = ONE_CLASS,
        block_leases: Leases = ONE_CLASS,
        prefix_cache: bool = False,
        cache_tail: int = 0,
        sliding_window: int | None = None,
        host_blocks: int = 0,
        host_leases: Leases = ONE_CLASS,
        forks: bool = True,
        copies: bool = False,
        room: Room | None = None,
        page_leases: Leases = ONE_CLASS,
        apart: int = 1,
        policies: Policies | None = None,
        grammars: GrammarsInUse | None = None,
        totals: Totals | None = None,
        inbox: Inbox | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.limits, self.apart = limits, apart
        self.grammars = GrammarsInUse() if grammars is None else grammars
        policies = policies or Policies()
        self.pacer = Pacer(policies.admission)
        self.decisions = Decisions(policies)
        self.windows: deque[Window] = deque(maxlen=self.decisions.past_windows)
        self.gains = WindowGains()
        # Ranks must decide alike: they count, and measure nothing.
        self.step_times = StepTimes(perf_counter if witness is None else None, learning)
        self._uncommitted: deque[int] = deque()  # query tokens of each step in flight
        self.inbox = Inbox(limits.max_queue) if inbox is None else inbox
        self.witness = witness
        self.log: RequestLog | None = None  # of a traced run
        self.counts: StepCounts | None = None  # where somebody looks on
        self.totals = Totals() if totals is None else totals
        self._open, self._left = True, False  # as of when the inbox was last emptied
        self.requests: dict[int, Request] = {}  # everything not yet done
        self._census: Census | None = None  # None: a phase has changed since
        self.ended: dict[int, Request] = {}  # done, but perhaps still in steps in flight
        self._untold: list[Request] = []  # done, and their listeners not told yet
        self.request_slots = KeyPool(range(limits.max_rows), slot_leases)
        self.blocks = BlockManager(
            limits,
            leases=block_leases,
            prefix_cache=prefix_cache,
            cache_tail=cache_tail,
            sliding_window=sliding_window,
            host_blocks=host_blocks,
            host_leases=host_leases,
            forks=forks,
            copies=copies,
        )
        self.encodings = Encodings(room or Room(), page_leases)
        self.steps = 0  # steps with at least one row
        self.preemptions = 0
        self.finished = 0  # requests that have ended, however
        self.newest = -1  # the highest number of a request that has arrived
        self._turn = 0
        self._step = -1
        self._rest = max(1, *slot_leases.values(), *block_leases.values())
        self._past = 0  # steps of earlier runs, and the rest after them
        self._generations = [0] * limits.max_rows
        # Who was in the last steps of this run.
        self._batches: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=BATCHES_KEPT)

    @property
    def pools(self) -> Mapping[str, KeyPool]:
        """The pools that it grants keys of, by the name that keyed states give (`State.keys`)."""
        blocks = self.blocks
        return {
            "request_slots": self.request_slots,
            "blocks": blocks.pool,
            "host_blocks": blocks.swap.host,
            "pages": self.encodings.pool,
        }

    # -- arrivals --------------------------------------------------------------------------

    def refuse_reason(
        self,
        prompt_tokens: int,
        max_tokens: int,
        window: int | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> str | None:
        """Why a request can never be served by this table, or None (any thread).

        `window`: query tokens of its decode rows; None: the widest.
        """
        limits = self.limits
        if prompt_tokens < 1:
            return "the prompt is empty"
        if prompt_tokens >= limits.context_length:
            return (
                f"the prompt has {prompt_tokens} tokens; the context of {limits.context_length} "
                "tokens must hold it and at least one more"
            )
        drafts = (limits.window if window is None else window) - 1
        need = limits.blocks_for(prompt_tokens + max_tokens + 2 * drafts)
        if need > limits.num_blocks:
            return (
                f"prompt and output need {need} KV blocks of {limits.block_size} tokens, "
                f"but there are {limits.num_blocks}"
            )
        return self.encodings.refuse_reason(attachments)

    def open(self) -> None:
        """Expect more requests (any thread): a run goes on, though it be idle, until `close`.

        Openings are counted. What is submitted while somebody holds the table open is served by
        the run that is on, or by the next if none is.
        """
        self.inbox.open()

    def close(self) -> None:
        """Take back one `open` (any thread): the run ends when all that was submitted has ended.

        A request submitted when nobody holds the table open is served only if the run has not
        found the table idle by then; else it waits for the next run on this table. Raises
        `RuntimeError` where nothing is open.
        """
        self.inbox.close()
        if not self.inbox.is_open:
            self.pacer.release()

    def submit(self, request: Request) -> None:
        """Queue a request (any thread). Raises `RequestError` if the queue is full."""
        self.inbox.submit(request)

    def submit_all(self, requests: Iterable[Request]) -> None:
        """Queue a whole batch of work that waits for all of it: no limit of the queue applies.

        One that can never be served ends with the `refuse_reason` for it, as by `submit`.
        """
        self.inbox.submit_all(requests)

    def cancel(self, uid: int, error: str | None = None) -> None:
        """End a request at the next schedule (any thread), with this error if there is one.

        One that has ended, or is not submitted yet, is not affected.
        """
        self.pacer.release()
        self.inbox.cancel(uid, error)

    def leave(self) -> None:
        """End the run that is on, and any other, between two steps, until `resume` (any thread).

        Whoever has not ended is computed again by the next run, from what is settled by then.
        """
        self.inbox.leave()
        self.pacer.release()

    def resume(self) -> None:
        """Let runs go on."""
        self.inbox.resume()

    @property
    def queued(self) -> int:
        """How many requests have arrived and have no row (any thread; as of a moment ago)."""
        return self.inbox.waiting + max(0, len(self.requests) - len(self.request_slots.held))

    # -- the schedule op -------------------------------------------------------------------

    def pace(self) -> None:
        """Come back when the next step is to be scheduled: later than now only if somebody may
        still arrive, and the device has work until then.
        """
        waited_for = self._uncommitted[0] if self._uncommitted else 0
        self.pacer.before_schedule(waited_for if self.inbox.is_open else 0)

    def paced(self, batch: StepBatch, waited_s: float) -> None:
        """The results of `batch` are there; the host was blocked so long until they were."""
        self._uncommitted.popleft()
        if batch:
            self.pacer.waited(waited_s)
        if not self.decisions.by_row:
            self.step_times.settled(batch.rows)

    def schedule(self, step: int, drafts: int | None = None) -> StepBatch:
        """Choose the rows of `step`, grant rows and blocks, preempt where they run out.

        `drafts`: the most that the plan of this step has for a row; None: any number.

        On an open table with nothing to do and nothing in flight this waits, for a request, for
        `close`, or at most `IDLE_WAIT_S`; the batch may be empty all the same. Raises `PolicyError`
        where a policy breaks a rule.
        """
        if step <= self._step:
            self._begin_run()
        self._step, idle_s = step, 0.0
        self._take_in()
        if self._left:
            self._uncommitted.append(0)
            return StepBatch(step, ())
        in_flight = any(request.in_flight.steps for request in self.ended.values())
        if self._open and not self.requests and not in_flight:
            idle_s = self._await_arrival()
            self._take_in()
        self.blocks.swap.begin(self._past + step)
        for request in self.phases.running:
            self.blocks.keep_up(request, self._past + step)
            if self.limits.is_long(request.settled) and not request.long:
                self.preempt(request)  # its model computes a text of this length anew
        rows = StepRows(self, self._past + step, drafts).chosen()
        if rows:
            self.steps += 1
            self.totals.steps += 1
        elif not any(request.in_flight.steps for request in self.requests.values()) and not any(
            each.any_awaited(self._past + step) for each in (self.blocks.swap, self.encodings)
        ):
            self.decisions.nobody_runs()
        if not self.decisions.by_row:
            self.step_times.scheduled(rows)
        self._uncommitted.append(sum(row.queries for row in rows))
        hit = (*[row.request.uid for row in rows], *self.encodings.of_step)
        self._batches.append((step, hit))
        if self.counts is not None:
            self.counts.scheduled(self._count(step, rows, idle_s))
        if self.witness is not None:
            self.witness.decided(step, "schedule", _said_of(rows))
        swaps = self.blocks.swap.take()
        if swaps is not None:
            self.totals.swapped_out += len(swaps.out)
            self.totals.swapped_in += len(swaps.into)
        copies = self.blocks.forks.take()
        self.totals.copied_blocks += len(copies)
        encodes = self.encodings.take()
        self.totals.encoded += len(encodes)
        return StepBatch(step, tuple(rows), swaps=swaps, copies=copies, encodes=encodes)

    def _await_arrival(self) -> float:
        """Until something comes, or `IDLE_WAIT_S`; how many seconds that took."""
        began = perf_counter()
        self.inbox.wait(IDLE_WAIT_S)
        return perf_counter() - began

    def _count(self, step: int, rows: Sequence[ScheduledRow], idle_s: float) -> StepCount:
        running = len(self.phases.running)
        return StepCount(
            step,
            rows=len(rows),
            waiting=len(self.requests) - running,
            blocks=len(self.blocks.pool.held),
            blocks_in_all=self.limits.num_blocks,
            mode=step_mode(rows) if rows else "",
            idle_s=idle_s,
        )

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is about to, and nobody holds the table open."""
        return not self.requests and self.inbox.over

    @property
    def over(self) -> bool:
        """Whether a run need not go on, by what was last taken in: nothing is left to do and nobody
        held the table open, or somebody told it to leave.
        """
        return self._left or not (self.requests or self._open)

    def _begin_run(self) -> None:
        """Steps count from 0 again: none of the run before is in flight, and no progress is known.

        The caches are as they were, so the prefix cache lives on.
        """
        self._abandon()  # in the steps of the run before
        self._past += self._step + self._rest

    def _abandon(self) -> None:
        """Nothing is in flight any more; who ran is to be computed again."""
        self._uncommitted.clear()
        self._batches.clear()
        for request in (*self.requests.values(), *self.ended.values()):
            request.begin_run()
        self.blocks.swap.drop_all()
        for request in self.phases.running:
            self.preempt(request)

    def _take_in(self) -> None:
        self._open, self._left, arrived, cancelled = self.inbox.take(self._step)
        for request in arrived:
            self._census = None
            self.newest = max(self.newest, request.uid)
            request.arrive()
            if request.grammar is not None:
                self.grammars.enter(request.uid, request.grammar)
            self.requests[request.uid] = request
            prompt, window = len(request.prompt_ids), request.window
            why = self.refuse_reason(prompt, request.max_tokens, window, request.attachments)
            if why is not None:
                self.finish(request, "error", why)  # or it would wait for room for ever
        for uid, error in cancelled:
            if uid in self.requests:
                self.finish(self.requests[uid], "error" if error else "cancelled", error)

    @property
    def phases(self) -> Census:
        """Who is in which phase. Raises nothing."""
        if self._census is None:
            self._census = Census.of(self.requests.values())
        return self._census

    def has_turn(self, request: Request, *, runs: bool = True) -> None:
        """A request is in this step's batch, or sits the step out: others go first. Raises nothing.

        To sit out is a turn, too: a policy that offers only some rows a step would else offer one
        for ever for which there is no memory, and never those whose turn would take it from that
        one.
        """
        if runs and self.log is not None:
            self.log.scheduled(request, self._step)
        self._turn += 1
        request.turn = self._turn

    def admit(self, request: Request, step: int) -> bool:
        """Let a request run, if there is a slot and there are blocks for it. Raises nothing."""
        if not self.request_slots.available(step) or not self.blocks.admit(request, step):
            return False
        slot = self.request_slots.grant(1, step)
        assert slot is not None, "available() said so"
        request.request_slot = slot[0]
        self._generations[request.request_slot] += 1
        request.generation = self._generations[request.request_slot]
        if request.is_fork and request.preemptions == 0:
            self.totals.forked_tokens += request.cached_tokens
        request.phase = "running"
        self._census = None
        return True

    def fits_without(self, request: Request, victims: list[Request], step: int) -> bool:
        """Whether it can run when `victims` do not, and nothing rests any more. Raises nothing."""
        rows = self.request_slots.available(step) + self.request_slots.resting() + len(victims)
        return rows > 0 and self.blocks.fits_without(request, victims, step)

    # -- after a run that failed -----------------------------------------------------------

    def recover(self, step: int | None, error: str) -> None:
        """End the requests of `step`'s batch with `error`.

        All others are as they were when `finish` last settled something, and wait to be computed
        again from that by the next run. Only when no op of the failed run is at work any more.
        Raises `PoolError` if a request slot or block is lost.
        """
        if self.witness is not None:
            self.witness.failed(step, error)
        self._take_in()
        self._give_up(next((hit for at, hit in self._batches if at == step), ()), error)

    def fail_all(self, error: str) -> None:
        """The same, with everybody who has arrived as the batch."""
        self._take_in()
        self._give_up(list(self.requests), error)

    def await_arrival(self) -> None:
        """Where somebody holds the table open: until something comes, or `IDLE_WAIT_S`."""
        if self._open:
            self._await_arrival()

    def _give_up(self, hit: Sequence[int], error: str) -> None:
        for request in self.requests.values():
            # Tokens that `advance` took in, but whose text was not shown yet, come again.
            request.forget_after(request.stopper.count)
        for uid in hit:
            if uid in self.requests:
                self.finish(self.requests[uid], "error", error)
        self._abandon()
        self.take_ended()
        self.blocks.forget_all()
        self.check_conservation()
        self.tell_ended()

    # -- settling --------------------------------------------------------------------------

    def preempt(self, request: Request) -> None:
        """Take slot and blocks back; the request waits, and recomputes from settled tokens."""
        self._release(request)
        request.phase = "preempted"
        self._census = None
        request.preemptions += 1
        self.preemptions += 1
        self.totals.preemptions += 1

    def give_way(self, request: Request) -> None:
        """Preempt a request for others: what is in place may wait on the host.

        Raises what the policy raises that decides it.
        """
        now = self._past + self._step
        blocks = self.blocks.can_keep(request, now)
        leaving = LeavingView(request.uid, blocks, blocks * self.limits.block_size)
        if blocks and self.decisions.keeps(leaving):
            self.blocks.swap_out(request, blocks, now)
        self.preempt(request)

    def finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request once; later calls change nothing. Its output is delivered when all that
        belongs to it is there: by `tell_ended`.
        """
        if request.phase == "done":
            return
        if request.phase == "running":
            self._release(request)
        self.blocks.forget(request)
        request.phase = "done"
        self._census = None
        self.finished += 1
        self.totals.prompt_tokens += len(request.prompt_ids)
        self.totals.cached_tokens += request.cached_tokens
        self.totals.end(reason)
        request.finish_reason = reason
        request.error = error
        request.moments.ended_s = perf_counter()
        self.ended[request.uid] = request
        self._untold.append(request)
        self.requests.pop(request.uid, None)

    def tell_ended(self) -> list[Request]:
        """Deliver the output of each request that has ended since the last time; who they are."""
        told: list[Request] = []
        while self._untold:
            told.append(self._untold.pop(0))
            told[-1].tell_end()
        return told

    def find(self, uid: int) -> Request:
        """A request that has not ended, or that a step in flight still carries.

        Raises `KeyError` for any other.
        """
        return self.requests[uid] if uid in self.requests else self.ended[uid]

    def settle(self, row: ScheduledRow) -> None:
        """Count one scheduled row as no longer in flight."""
        request = self.find(row.request.uid)
        flight = request.in_flight
        if row.decodes:
            flight.windows -= 1
            flight.drafts -= row.window - 1
        elif row.yields:
            flight.firsts -= 1
        else:
            flight.silent -= 1
        moments = request.moments
        if row.yields and moments.first_token_s is None and request.phase != "done":
            moments.first_token_s = perf_counter()
        assert min(flight.windows, flight.drafts, flight.firsts, flight.silent) >= 0, (
            "settled twice"
        )
        self.blocks.settle(request, row)

    def note_window(self, request: Request, window: Window, drafts: int) -> None:
        """A window of a request, with so many drafts, is settled; for policies that look back.

        Raises nothing.
        """
        if self.decisions.past_windows:
            request.windows.append(window)
            self.windows.append(window)
            self.gains.note(drafts, 1 + window.kept)

    def note_waste(self, drafts: int) -> None:
        """The same of a window whose request had ended while it was in flight. Raises nothing."""
        if self.decisions.past_windows:
            self.gains.note(drafts, 0)

    def take_ended(self) -> Iterable[int]:
        """Requests that ended and that no step in flight still carries, each once."""
        gone = [uid for uid, request in self.ended.items() if request.in_flight.steps == 0]
        for uid in gone:
            del self.ended[uid]
            self.grammars.remove(uid)
        return gone

    # -- counts and checks -----------------------------------------------------------------

    @property
    def prefix_queries(self) -> int:
        """Tokens that admissions looked up in the prefix cache."""
        return self.blocks.prefix_queries

    @property
    def prefix_hits(self) -> int:
        """Tokens that they found there, and did not compute."""
        return self.blocks.prefix_hits

    @property
    def freed_by_window(self) -> int:
        """Blocks given back by running requests, below their sliding window."""
        return self.blocks.freed_by_window

    def check_conservation(self) -> None:
        """Every request slot and block is in one place, and it is the one we think.

        Raises `PoolError`.
        """
        self.request_slots.check_conservation()
        running = self.phases.running
        assert running == Census.of(self.requests.values()).running, "a phase changed unnoticed"
        assert self.request_slots.held == {r.request_slot for r in running}, (
            "request slots held by nobody who runs"
        )
        self.blocks.check_conservation(running)
        self.encodings.check_conservation()

    def _release(self, request: Request) -> None:
        now = self._past + self._step
        self.request_slots.release([request.request_slot], request.last_step)
        self.blocks.release(request, now)
        self.encodings.release(request, now)
        request.request_slot = request.generation = -1


def _said_of(rows: Sequence[ScheduledRow]) -> object:
    """What a step computes and where, for comparing: plain data."""
    return tuple(
        (
            row.request.uid,
            row.request_slot,
            row.generation,
            row.queries,
            row.start,
            row.forced,
            row.samples,
            row.blocks,
        )
        for row in rows
    )
