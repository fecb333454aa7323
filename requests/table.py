"""The request table: who waits, who runs, on which row and blocks; what each step schedules.

This is the `requests` state of the step graph. Only ops that declare it call these methods, so
it needs no lock. What other threads may call is marked so, and goes to the inbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter

from ..policies.chosen import Policies
from ..structured.in_use import GrammarsInUse
from .batch import ScheduledRow, StepBatch
from .blocks import BlockManager
from .census import Census, running_view, window_view
from .decisions import Decisions
from .inbox import Inbox
from .limits import Limits
from .pacer import Pacer
from .pools import KeyPool
from .request import FinishReason, Request
from .spans import RequestLog
from .step_counts import StepCount

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

    `prefix_cache`, `cache_tail` and `sliding_window` are those of `BlockManager`. `policies` decide
    when steps are scheduled, who runs and who gives way. In `grammars` are those of the requests
    that are being served: batches name them by the request.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        slot_reuse: int = 1,
        block_reuse: int = 1,
        prefix_cache: bool = False,
        cache_tail: int = 0,
        sliding_window: int | None = None,
        policies: Policies | None = None,
        grammars: GrammarsInUse | None = None,
    ) -> None:
        self.limits = limits
        self.grammars = GrammarsInUse() if grammars is None else grammars
        policies = policies or Policies()
        self.pacer = Pacer(policies.admission)
        self.decisions = Decisions(policies)
        self._uncommitted: deque[int] = deque()  # query tokens of each step in flight
        self.inbox = Inbox(limits.max_queue)
        self.log: RequestLog | None = None  # of a traced run
        self.requests: dict[int, Request] = {}  # everything not yet done
        self._census: Census | None = None  # None: a phase has changed since
        self.ended: dict[int, Request] = {}  # done, but perhaps still in steps in flight
        self._untold: list[Request] = []  # done, and their listeners not told yet
        self.request_slots = KeyPool(range(limits.max_rows), slot_reuse)
        self.blocks = BlockManager(
            limits,
            reuse=block_reuse,
            prefix_cache=prefix_cache,
            cache_tail=cache_tail,
            sliding_window=sliding_window,
        )
        self.steps = 0  # steps with at least one row
        self.preemptions = 0
        self.finished = 0  # requests that have ended, however
        self._turn = 0
        self._step = -1
        self._rest = max(slot_reuse, block_reuse)
        self._past = 0  # steps of earlier runs, and the rest after them
        self._generations = [0] * limits.max_rows
        # Who was in the last steps of this run.
        self._batches: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=BATCHES_KEPT)

    # -- arrivals --------------------------------------------------------------------------

    def refuse_reason(
        self, prompt_tokens: int, max_tokens: int, window: int | None = None
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
        return None

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
        self.pacer.release()
        self.inbox.close()

    def submit(self, request: Request) -> None:
        """Queue a request (any thread). Raises `RequestError` if the queue is full."""
        self.inbox.submit(request)

    def submit_all(self, requests: Iterable[Request]) -> None:
        """Queue a whole batch of work that waits for all of it: no limit of the queue applies."""
        self.inbox.submit_all(requests)

    def cancel(self, uid: int) -> None:
        """End a request at the next schedule (any thread).

        One that has ended, or is not submitted yet, is not affected.
        """
        self.pacer.release()
        self.inbox.cancel(uid)

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

    def schedule(self, step: int) -> StepBatch:
        """Choose the rows of `step`, grant rows and blocks, preempt where they run out.

        On an open table with nothing to do and nothing in flight this waits, for a request, for
        `close`, or at most `IDLE_WAIT_S`; the batch may be empty all the same. Raises `PolicyError`
        where a policy breaks a rule.
        """
        if step <= self._step:
            self._begin_run()
        self._step = step
        self._take_in()
        in_flight = any(request.in_flight.steps for request in self.ended.values())
        if self.inbox.is_open and not self.requests and not in_flight:
            self.inbox.wait(IDLE_WAIT_S)
            self._take_in()
        for request in self._phases.running:
            self.blocks.keep_up(request)
            if self.limits.is_long(request.settled) and not request.long:
                self.preempt(request)  # its model computes a text of this length anew
        rows: list[ScheduledRow] = []
        now = self._past + step
        promised = self._make_room(now)
        self._prefills(now, self._decodes(now, promised, rows), rows)
        if rows:
            self.steps += 1
        elif not any(request.in_flight.steps for request in self.requests.values()):
            self.decisions.nobody_runs()
        self._uncommitted.append(sum(row.queries for row in rows))
        self._batches.append((step, tuple([row.request.uid for row in rows])))
        if self.log is not None:
            self.log.steps.scheduled(self._count(step, len(rows)))
        return StepBatch(step, tuple(rows))

    def _count(self, step: int, rows: int) -> StepCount:
        running = len(self._phases.running)
        return StepCount(
            step,
            rows=rows,
            waiting=len(self.requests) - running,
            blocks=len(self.blocks.pool.held),
            blocks_in_all=self.limits.num_blocks,
        )

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is about to, and nobody holds the table open."""
        return not self.requests and self.inbox.over

    def _begin_run(self) -> None:
        """Steps count from 0 again: none of the run before is in flight, and no progress is known.

        The caches are as they were, so the prefix cache lives on.
        """
        self._past += self._step + self._rest
        self._abandon()

    def _abandon(self) -> None:
        """Nothing is in flight any more; who ran is to be computed again."""
        self._uncommitted.clear()
        self._batches.clear()
        for request in (*self.requests.values(), *self.ended.values()):
            request.begin_run()
        for request in self._phases.running:
            self.preempt(request)

    def _take_in(self) -> None:
        for request in self.inbox.arrived():
            self._census = None
            request.arrive()
            if request.grammar is not None:
                self.grammars.enter(request.uid, request.grammar)
            self.requests[request.uid] = request
        for uid in self.inbox.cancelled():
            if uid in self.requests:
                self.finish(self.requests[uid], "cancelled")

    @property
    def _phases(self) -> Census:
        if self._census is None:
            self._census = Census.of(self.requests.values())
        return self._census

    def _make_room(self, step: int) -> int | None:
        """Admit those that wait while requests of a worse priority run, in place of these.

        Before any row is chosen, since a row that is in the batch cannot be preempted. The
        result, if any, is the priority of a request whose room is released but still rests:
        until it is admitted, none of a worse priority is granted blocks.
        """
        running = self._phases.running
        if not running:
            return None
        worst = max(request.params.priority for request in running)
        better = self._phases.better_than(worst)
        for view in self.decisions.order(better) if better else ():
            request = self.requests[view.uid]
            if request.in_flight.steps:
                return None
            if self._admit(request, step):
                continue
            victims = self._victims_for(request, step)
            if victims is None:
                return None
            for each in victims:
                self.preempt(each)
            if not self._admit(request, step):
                return view.priority
        return None

    def _victims_for(self, request: Request, step: int) -> list[Request] | None:
        """As few as the policy names until there is room for `request`; None if that is in vain."""
        priority = request.params.priority
        worse = [running_view(r) for r in self._phases.running if r.params.priority > priority]
        victims: list[Request] = []
        while not self._fits_without(request, victims, step):
            if not worse:
                return None
            uid = self.decisions.victim(worse)
            worse = [view for view in worse if view.uid != uid]
            victims.append(self.requests[uid])
        return victims

    def _decodes(self, step: int, promised: int | None, rows: list[ScheduledRow]) -> int:
        """Choose the rows that decode; the result is what they leave of the token budget."""
        ready: dict[int, Request] = {}
        prompts, widest = len(self.requests), 0
        contexts = self.limits.context_of(long=False), self.limits.context_of(long=True)
        for request in self._phases.running:
            if request.prefilled < request.prefill_target:
                continue
            prompts -= 1
            if not request.certain_to_end(contexts[request.long]):
                ready[request.uid] = request
                if request.window > widest:
                    widest = request.window
        budget = self.limits.token_budget
        left = share = self.decisions.share(budget, widest, prompts)
        chosen: set[int] = set()
        views = [window_view(each) for each in ready.values()]
        for view in self.decisions.order(views) if views else ():
            found = ready.pop(view.uid, None)
            request = found or self.decisions.not_offered(view)
            if left < 1:
                break
            tokens = self.decisions.offer(view, left)
            if (tokens != request.window or tokens > left) and not self.decisions.checked(
                view, tokens, left, request.window
            ):
                break
            if request.phase != "running":  # preempted for a row before it
                continue
            if not self._reserve_window(request, step, promised, chosen):
                self.decisions.no_memory()
                continue
            rows.append(self._row(request, step))
            request.in_flight.windows += 1
            chosen.add(request.uid)
            left -= request.window
        return budget - share + left

    def _prefills(self, step: int, left: int, rows: list[ScheduledRow]) -> None:
        if left < 1:
            return
        wanting = self._phases.prompts()
        seen: set[int] = set()
        blocked = False
        room = self.limits.context_length  # for prefixes: they share one staging buffer
        for view in self.decisions.order(wanting) if wanting else ():
            if left < 1:
                break
            known = None if view.uid in seen else self.requests.get(view.uid)
            request = known or self.decisions.not_offered(view)
            seen.add(view.uid)
            if request.phase == "running" and request.prefilled >= request.prefill_target:
                self.decisions.not_offered(view)
            tokens = self.decisions.offer(view, left)
            most = self.decisions.checked(view, tokens, left, view.tokens)
            if not most:
                break
            if request.phase != "running" and (
                blocked or request.in_flight.steps or not self._admit(request, step)
            ):
                blocked = True  # nobody overtakes; but those that run go on, or none would end
                self.decisions.no_memory()
                continue
            prefix = self.blocks.pending_prefix(request)
            if prefix > room:
                blocked = True
                continue
            room -= prefix
            left -= self._chunk(request, step, most, rows)

    def _admit(self, request: Request, step: int) -> bool:
        if not self.request_slots.available(step) or not self.blocks.admit(request, step):
            return False
        slot = self.request_slots.grant(1, step)
        assert slot is not None, "available() said so"
        request.request_slot = slot[0]
        self._generations[request.request_slot] += 1
        request.generation = self._generations[request.request_slot]
        request.phase = "running"
        self._census = None
        return True

    def _fits_without(self, request: Request, victims: list[Request], step: int) -> bool:
        rows = self.request_slots.available(step) + self.request_slots.resting() + len(victims)
        return rows > 0 and self.blocks.fits_without(request, victims, step)

    def _chunk(self, request: Request, step: int, most: int, rows: list[ScheduledRow]) -> int:
        """Compute the next tokens of a prompt, `most` at most; the result is how many."""
        start = request.prefilled
        end = min(request.prefill_target, start + most)
        final = end == request.prefill_target
        forced = request.output_ids[-1] if final and request.resumes else -1
        rows.append(
            self._row(
                request,
                step,
                start=start,
                tokens=tuple(request.token(position) for position in range(start, end)),
                samples=final,
                forced=forced,
                following=request.token(end) if end < request.settled else -1,
                prefix=tuple(
                    request.token(position)
                    for position in range(self.blocks.pending_prefix(request))
                ),
                prompt_targets=request.prompt_targets(start, end - start),
            )
        )
        self.blocks.named_prefix(request)
        request.prefilled = end
        if final and forced < 0:
            request.in_flight.firsts += 1
        else:
            request.in_flight.silent += 1
        return end - start

    def _row(
        self,
        request: Request,
        step: int,
        *,
        start: int = -1,
        tokens: tuple[int, ...] = (),
        samples: bool = True,
        forced: int = -1,
        following: int = -1,
        prefix: tuple[int, ...] = (),
        prompt_targets: tuple[int, ...] = (),
    ) -> ScheduledRow:
        request.last_step = step
        if request.moments.scheduled_s is None:
            request.moments.scheduled_s = perf_counter()
        if self.log is not None:
            self.log.scheduled(request, self._step)
        self._turn += 1
        request.turn = self._turn
        return ScheduledRow(
            request=request.spec,
            request_slot=request.request_slot,
            generation=request.generation,
            blocks=tuple(request.blocks),
            start=start,
            tokens=tokens,
            samples=samples,
            forced=forced,
            following=following,
            prefix=prefix,
            limit=self.limits.context_of(long=request.long),
            most=request.upper_bound() + request.window if start < 0 else start + len(tokens) + 1,
            too_short=request.too_short,
            earlier_output=request.earlier_output if request.spec.structured else (),
            prompt_targets=prompt_targets,
        )

    def _reserve_window(
        self, request: Request, step: int, promised: int | None, chosen: set[int]
    ) -> bool:
        """Blocks for one more window, preempting worse requests if need be.

        Where it is itself the worst, it sits the step out: nobody else is short of blocks then.
        """
        need = self.blocks.missing(request)
        if need > 0 and promised is not None and request.params.priority > promised:
            return False
        while need > 0 and not self.blocks.extend(request, need, step):
            priority = request.params.priority
            other = self.decisions.victim(
                [
                    running_view(each)
                    for each in self._phases.running
                    if each.uid not in chosen and each.params.priority >= priority
                ]
            )
            if other == request.uid:
                return False
            self.preempt(self.requests[other])
        return True

    # -- after a run that failed -----------------------------------------------------------

    def recover(self, step: int | None, error: str) -> None:
        """End the requests of `step`'s batch with `error`.

        All others are as they were when `finish` last settled something, and wait to be computed
        again from that by the next run. Only when no op of the failed run is at work any more.
        Raises `PoolError` if a request slot or block is lost.
        """
        self._give_up(next((hit for at, hit in self._batches if at == step), ()), error)

    def fail_all(self, error: str) -> None:
        """The same, with everybody who has arrived as the batch."""
        self._take_in()
        self._give_up(list(self.requests), error)

    def await_arrival(self) -> None:
        """Where somebody holds the table open: until something comes, or `IDLE_WAIT_S`."""
        if self.inbox.is_open:
            self.inbox.wait(IDLE_WAIT_S)

    def _give_up(self, hit: Sequence[int], error: str) -> None:
        for request in self.requests.values():
            # Tokens that `advance` took in, but whose text was not shown yet, come again.
            del request.output_ids[request.stopper.count :]
            del request.logprobs[request.stopper.count :]
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

    def finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request once; later calls change nothing. Its listener hears of it when all that
        belongs to it is there: from `tell_ended`.
        """
        if request.phase == "done":
            return
        if request.phase == "running":
            self._release(request)
        self.blocks.forget(request)
        request.phase = "done"
        self._census = None
        self.finished += 1
        request.finish_reason = reason
        request.error = error
        request.moments.ended_s = perf_counter()
        self.ended[request.uid] = request
        if request.on_ended is not None:
            self._untold.append(request)
        self.requests.pop(request.uid, None)

    def tell_ended(self) -> None:
        """Call `on_ended` of each request that has ended since the last time."""
        while self._untold:
            request = self._untold.pop(0)
            if request.on_ended is not None:
                request.on_ended(request)

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
        elif row.yields:
            flight.firsts -= 1
            if request.moments.first_token_s is None and request.phase != "done":
                request.moments.first_token_s = perf_counter()
        else:
            flight.silent -= 1
        assert min(flight.windows, flight.firsts, flight.silent) >= 0, "settled twice"
        self.blocks.settle(request, row)

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
        running = self._phases.running
        assert running == Census.of(self.requests.values()).running, "a phase changed unnoticed"
        assert self.request_slots.held == {r.request_slot for r in running}, (
            "request slots held by nobody who runs"
        )
        self.blocks.check_conservation(running)

    def _release(self, request: Request) -> None:
        self.request_slots.release([request.request_slot], request.last_step)
        self.blocks.release(request)
        request.request_slot = request.generation = -1
