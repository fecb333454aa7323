"""Which requests run in a step, in simulated time, by the engine's limits and policies.

The rules are those of `requests/step_rows.py`, for requests without tokens: rows that decode first,
then prompts in chunks, each with blocks for what it may come to; who finds none preempts the one
that the policy names. Policies are asked through the engine's own `Decisions`, which holds them to
their rules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

from ..policies.chosen import Policies
from ..policies.preemption import RunningView
from ..policies.scheduling import RowView
from ..requests.decisions import Decisions
from ..requests.limits import Limits
from .forward_cost import Work
from .jobs import Job


class Row(NamedTuple):
    """What a request has in a step: `gives` says what its result is."""

    job: Job
    tokens: int
    gives: Literal["nothing", "first", "window"]


NOTHING = Work()


@dataclass(slots=True)
class Step:
    """The rows of one step and what they come to."""

    rows: list[Row] = field(default_factory=list)
    work: Work = NOTHING


class StepScheduler:
    """The requests of one replica."""

    def __init__(self, limits: Limits, policies: Policies, *, acceptance: float = 0.0) -> None:
        self.limits, self.acceptance = limits, acceptance
        self.decisions = Decisions(policies)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.free_blocks = limits.num_blocks
        self.preemptions = 0
        self.flying = 0  # steps with rows that are not settled
        self._turn = 0

    @property
    def inside(self) -> int:
        """Requests that have come and not ended."""
        return len(self.waiting) + len(self.running)

    def add(self, job: Job) -> None:
        """A request has come; one that can never run is refused at once."""
        most = self._tokens_at_most(job)
        if job.prompt + job.output > self.limits.context_length:
            job.refused = (
                f"{job.prompt} + {job.output} tokens; the context has {self.limits.context_length}"
            )
        elif (need := self.limits.blocks_for(most)) > self.limits.num_blocks:
            job.refused = f"needs {need} KV blocks; the layout has {self.limits.num_blocks}"
        elif len(self.waiting) >= self.limits.max_queue:
            job.refused = f"the queue is full: {self.limits.max_queue} requests wait"
        else:
            job.target = job.prompt
            self.waiting.append(job)

    def next_step(self, now_us: float) -> Step:
        """Choose the rows of a step. Raises `PolicyError`."""
        step, context, attended = Step(), 0, 0
        left = self._decodes(step)
        self._prefills(step, left)
        sampled = tokens = 0
        for job, count, gives in step.rows:
            if job.began_us is None:
                job.began_us = now_us
            tokens += count
            if gives == "window":
                end = job.prompt + job.settled + job.in_flight * self.limits.window
                context, attended = context + end, attended + end * count
                sampled += count
            else:
                context += job.computed
                attended += (2 * job.computed - count + 1) * count // 2
                sampled += gives == "first"
        step.work = Work(len(step.rows), tokens, sampled, context, attended)
        if step.rows:
            self.flying += 1
        elif self.inside and not self.flying:
            self.decisions.nobody_runs()
        return step

    def settle(self, step: Step, now_us: float) -> None:
        """The results of a step with rows are known."""
        self.flying -= 1
        for job, _, gives in step.rows:
            if gives == "nothing":
                job.silent -= 1
                continue
            job.in_flight -= 1
            if job.done:  # it ended while this step was in flight
                continue
            came = 1
            if gives == "window" and self.limits.draft_tokens:
                accepted = job.accept(self.limits.draft_tokens, self.acceptance)
                came += accepted
                job.windows += 1
                job.accepted += accepted
            came = min(came, job.output - job.settled)
            job.settled += came
            job.arrivals.append((now_us, came))
            if job.done:  # it runs, or was preempted while this step was in flight
                (self.running if job.running else self.waiting).remove(job)
                self._release(job)

    # -- rows ------------------------------------------------------------------------------

    def _decodes(self, step: Step) -> int:
        """Rows that decode; the result is what they leave of the token budget."""
        window, budget = self.limits.window, self.limits.token_budget
        ready = {job.uid: job for job in self.running if self._ready(job)}
        prompts = len(self.waiting) + sum(not job.decodes for job in self.running)
        left = share = self.decisions.share(budget, window if ready else 0, prompts)
        chosen: set[int] = set()
        views = [_view(job, window, True) for job in ready.values()]
        for view in self.decisions.order(views) if views else ():
            job = ready.pop(view.uid, None) or self.decisions.not_offered(view)
            if left < 1:
                break
            tokens = self.decisions.checked(view, self.decisions.offer(view, left), left, window)
            if not tokens:
                break
            if not job.running:  # preempted for a row before it
                continue
            self._passes(job)
            if not self._grow(job, self._tokens_of(job), chosen):
                self.decisions.no_memory()
                continue
            job.in_flight += 1
            chosen.add(job.uid)
            step.rows.append(Row(job, window, "window"))
            left -= window
        return budget - share + left

    def _prefills(self, step: Step, left: int) -> None:
        waiting = {job.uid: job for job in self.running if not job.decodes}
        if len(self.running) < self.limits.max_rows:
            # No more can be admitted, and nobody overtakes: those behind need not be looked at.
            waiting |= {job.uid: job for job in islice(self.waiting, self.limits.max_rows)}
        if left < 1 or not waiting:
            return
        blocked = False
        views = [_view(job, _wanted(job), False) for job in waiting.values()]
        for view in self.decisions.order(views):
            job = waiting.pop(view.uid, None) or self.decisions.not_offered(view)
            if left < 1:
                break
            offered = self.decisions.offer(view, left)
            tokens = self.decisions.checked(view, offered, left, view.tokens)
            if not tokens:
                break
            if not job.running and (blocked or not self._admit(job)):
                blocked = True  # nobody overtakes; but those that run go on
                self.decisions.no_memory()
                continue
            self._passes(job)
            job.computed += tokens
            left -= tokens
            final = job.computed >= job.target
            gives: Literal["nothing", "first"] = "first" if final and not job.resumes else "nothing"
            if gives == "first":
                job.in_flight += 1
            else:
                job.silent += 1
            step.rows.append(Row(job, tokens, gives))

    def _ready(self, job: Job) -> bool:
        """Whether it may decode: it is not certain to end with the steps in flight."""
        return job.decodes and job.settled + job.in_flight < job.output

    def _passes(self, job: Job) -> None:
        """It has had its turn, if only to sit the step out: as `RequestTable.has_turn`."""
        self._turn += 1
        job.turn = self._turn

    # -- memory ----------------------------------------------------------------------------

    def _tokens_at_most(self, job: Job) -> int:
        return job.prompt + job.output + 2 * self.limits.draft_tokens

    def _tokens_of(self, job: Job) -> int:
        """What its cache may come to with one more window."""
        grown = job.prompt + job.settled + (job.in_flight + 1) * self.limits.window
        return min(grown, self._tokens_at_most(job))

    def _admit(self, job: Job) -> bool:
        """Room for its whole prompt and a window; nobody is preempted for it."""
        if len(self.running) >= self.limits.max_rows or _flying(job):
            return False
        job.target, job.resumes = job.prompt + job.settled, job.settled > 0
        job.computed = 0
        need = self.limits.blocks_for(self._tokens_of(job))
        if need > self.free_blocks:
            return False
        self.free_blocks -= need
        job.blocks, job.running = need, True
        self.waiting.remove(job)
        self.running.append(job)
        return True

    def _grow(self, job: Job, tokens: int, chosen: set[int]) -> bool:
        """Blocks for so many tokens, preempting whom the policy names if need be."""
        need = self.limits.blocks_for(tokens) - job.blocks
        while need > self.free_blocks:
            views = [_running_view(each) for each in self.running if each.uid not in chosen]
            uid = self.decisions.victim(views)
            if uid == job.uid:
                return False
            self._preempt(next(each for each in self.running if each.uid == uid))
        if need > 0:
            self.free_blocks -= need
            job.blocks += need
        return True

    def _preempt(self, job: Job) -> None:
        self._release(job)
        self.running.remove(job)
        self.waiting.appendleft(job)
        self.preemptions += 1

    def _release(self, job: Job) -> None:
        self.free_blocks += job.blocks
        job.blocks, job.running = 0, False


def _view(job: Job, tokens: int, decodes: bool) -> RowView:
    return RowView(0, job.uid, job.turn, tokens, decodes, job.running, _flying(job))


def _flying(job: Job) -> int:
    """Steps that carry it and are not settled."""
    return job.in_flight + job.silent


def _wanted(job: Job) -> int:
    """Tokens of its prompt that are to be computed; after a preemption those it has settled too."""
    return job.target - job.computed if job.running else job.prompt + job.settled


def _running_view(job: Job) -> RunningView:
    return RunningView(0, job.uid, job.prompt + job.settled, job.blocks)
