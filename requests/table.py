"""The request table: who waits, who runs, on which row and blocks; what each step schedules.

This is the `requests` state of the step graph. Only ops that declare it call these methods, so
it needs no lock; the inbox is the one exception, since requests arrive from other threads.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import dataclass

from ..policies.pools import KeyPool
from ..policies.scheduling import Budget, DecodeView, PrefillView, victim
from .batch import ScheduledRow, StepBatch
from .request import FinishReason, Request, RequestError


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that the scheduler works within; tokens and blocks are counts, not bytes."""

    max_rows: int
    token_budget: int
    block_size: int
    num_blocks: int  # without the scratch block
    context_length: int
    draft_tokens: int  # k; 0 without a drafter
    max_queue: int

    @property
    def window(self) -> int:
        """Query tokens of a decode row: its last token and k drafts."""
        return self.draft_tokens + 1

    def blocks_for(self, tokens: int) -> int:
        return -(-min(tokens, self.context_length) // self.block_size)


class RequestTable:
    """All requests of an engine, and the rows and KV blocks they hold."""

    def __init__(self, limits: Limits, *, row_reuse: int = 1, block_reuse: int = 1) -> None:
        self.limits = limits
        self.inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.cancelled: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.requests: dict[int, Request] = {}  # everything not yet done
        self.ended: list[Request] = []  # done, but perhaps still in steps in flight
        self.rows = KeyPool(range(limits.max_rows), row_reuse)
        # Block 0 is the scratch block of the cache: never granted.
        self.blocks = KeyPool(range(1, limits.num_blocks + 1), block_reuse)
        self.steps = 0  # steps with at least one row
        self.preemptions = 0
        self._turn = 0
        self._generations = [0] * limits.max_rows

    # -- admission -------------------------------------------------------------------------

    def refuse_reason(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Why a request can never be served by this table, or None."""
        limits = self.limits
        if prompt_tokens < 1:
            return "the prompt is empty"
        if prompt_tokens >= limits.context_length:
            return (
                f"the prompt has {prompt_tokens} tokens; the context of {limits.context_length} "
                "tokens must hold it and at least one more"
            )
        need = limits.blocks_for(prompt_tokens + max_tokens + 2 * limits.draft_tokens)
        if need > limits.num_blocks:
            return (
                f"prompt and output need {need} KV blocks of {limits.block_size} tokens, "
                f"but there are {limits.num_blocks}"
            )
        return None

    def submit(self, request: Request) -> None:
        """Queue a request (any thread). Raises `RequestError` if the queue is full."""
        if self.inbox.qsize() >= self.limits.max_queue:
            raise RequestError(
                f"the queue is full ({self.limits.max_queue} requests wait)", code="SW-QUEUE-FULL"
            )
        self.inbox.put(request)

    def submit_all(self, requests: Iterable[Request]) -> None:
        """Queue a whole batch of work that waits for all of it: no limit of the queue applies."""
        for request in requests:
            self.inbox.put(request)

    def cancel(self, uid: int) -> None:
        """End a request at the next schedule (any thread)."""
        self.cancelled.put(uid)

    # -- the schedule op -------------------------------------------------------------------

    def schedule(self, step: int) -> StepBatch:
        """Choose the rows of `step`, grant rows and blocks, preempt where blocks run out."""
        self._take_in()
        left = self.limits.token_budget
        rows: list[ScheduledRow] = []
        left = self._decodes(step, left, rows)
        self._prefills(step, left, rows)
        if rows:
            self.steps += 1
        return StepBatch(step, tuple(rows))

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is about to."""
        return not self.requests and self.inbox.empty()

    def _take_in(self) -> None:
        while not self.inbox.empty():
            request = self.inbox.get_nowait()
            self.requests[request.uid] = request
        while not self.cancelled.empty():
            request_or_none = self.requests.get(self.cancelled.get_nowait())
            if request_or_none is not None:
                self.finish(request_or_none, "cancelled")

    def _decodes(self, step: int, left: int, rows: list[ScheduledRow]) -> int:
        chosen: set[int] = set()
        budget = Budget(left, self.limits.window)
        ready = [
            DecodeView(r.uid, r.turn, r.uid)
            for r in self.requests.values()
            if r.phase == "running"
            and r.prefilled >= r.prefill_target
            and not r.certain_to_end(self.limits.context_length)
        ]
        for view in budget.decodes(ready):
            if left < budget.window:
                break
            request = self.requests[view.uid]
            if request.phase != "running":  # preempted for a row before it
                continue
            if not self._reserve_window(request, step, chosen):
                continue
            rows.append(self._row(request, step, start=-1, tokens=()))
            request.in_flight.windows += 1
            chosen.add(request.uid)
            left -= budget.window
        return left

    def _prefills(self, step: int, left: int, rows: list[ScheduledRow]) -> None:
        waiting = [
            PrefillView(r.uid, r.uid)
            for r in self.requests.values()
            if (r.phase == "running" and r.prefilled < r.prefill_target)
            or r.phase == "waiting"
            or (r.phase == "preempted" and r.in_flight.steps == 0)
        ]
        for view in Budget.prefills(waiting):
            if left < 1:
                break
            request = self.requests[view.uid]
            if request.phase != "running" and not self._admit(request, step):
                break  # first come, first served: nobody overtakes
            left -= self._chunk(request, step, left, rows)

    def _admit(self, request: Request, step: int) -> bool:
        request.begin_prefill()
        need = self.limits.blocks_for(request.prefill_target + 1 + 2 * self.limits.draft_tokens)
        if self.blocks.available(step) < need:
            return False
        row = self.rows.grant(1, step)
        if row is None:
            return False
        blocks = self.blocks.grant(need, step)
        assert blocks is not None, "available() said so"
        request.row = row[0]
        self._generations[request.row] += 1
        request.generation = self._generations[request.row]
        request.blocks = blocks
        request.phase = "running"
        return True

    def _chunk(self, request: Request, step: int, left: int, rows: list[ScheduledRow]) -> int:
        start = request.prefilled
        end = min(request.prefill_target, start + left)
        final = end == request.prefill_target
        tokens = tuple(request.token(position) for position in range(start, end))
        forced = request.output_ids[-1] if final and request.resumes else -1
        rows.append(
            self._row(request, step, start=start, tokens=tokens, samples=final, forced=forced)
        )
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
        start: int,
        tokens: tuple[int, ...],
        samples: bool = True,
        forced: int = -1,
    ) -> ScheduledRow:
        request.last_step = step
        self._turn += 1
        request.turn = self._turn
        return ScheduledRow(
            request=request,
            row=request.row,
            generation=request.generation,
            blocks=tuple(request.blocks),
            start=start,
            tokens=tokens,
            samples=samples,
            forced=forced,
        )

    def _reserve_window(self, request: Request, step: int, chosen: set[int]) -> bool:
        """Blocks up to the furthest position this step may write, preempting if need be.

        The upper bound counts every draft in flight as accepted; the drafter then writes up to
        k positions past the window.
        """
        limits = self.limits
        furthest = request.most(limits.window) + 2 * limits.draft_tokens
        need = limits.blocks_for(furthest) - len(request.blocks)
        while need > 0:
            granted = self.blocks.grant(need, step)
            if granted is not None:
                request.blocks.extend(granted)
                return True
            other = victim(
                DecodeView(r.uid, r.turn, r.uid)
                for r in self.requests.values()
                if r.phase == "running" and r.uid not in chosen
            )
            if other is None:
                return False
            self.preempt(self.requests[other])
            if other == request.uid:
                return False
        return True

    # -- settling --------------------------------------------------------------------------

    def preempt(self, request: Request) -> None:
        """Take row and blocks back; the request waits, and recomputes from settled tokens."""
        self._release(request)
        request.phase = "preempted"
        request.preemptions += 1
        self.preemptions += 1

    def finish(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request once; later calls change nothing."""
        if request.phase == "done":
            return
        if request.phase == "running":
            self._release(request)
        request.phase = "done"
        request.finish_reason = reason
        request.error = error
        self.ended.append(request)
        self.requests.pop(request.uid, None)

    def settle(self, row: ScheduledRow) -> None:
        """Count one scheduled row as no longer in flight."""
        flight = row.request.in_flight
        if row.decodes:
            flight.windows -= 1
        elif row.yields:
            flight.firsts -= 1
        else:
            flight.silent -= 1
        assert min(flight.windows, flight.firsts, flight.silent) >= 0, "settled twice"

    def take_ended(self) -> Iterable[int]:
        """Requests that ended and that no step in flight still carries, each once."""
        gone = [request.uid for request in self.ended if request.in_flight.steps == 0]
        self.ended = [request for request in self.ended if request.in_flight.steps > 0]
        return gone

    def check_conservation(self) -> None:
        """Every row and block is in one hand, and it is the hand we think. Raises `PoolError`."""
        self.rows.check_conservation()
        self.blocks.check_conservation()
        running = [r for r in self.requests.values() if r.phase == "running"]
        assert self.rows.held == {r.row for r in running}, "rows held by nobody who runs"
        assert self.blocks.held == {b for r in running for b in r.blocks}, "blocks leaked"

    def _release(self, request: Request) -> None:
        self.rows.release([request.row], request.last_step)
        self.blocks.release(request.blocks, request.last_step)
        request.row = request.generation = -1
        request.blocks = []
