"""The engine: it owns the models, the caches and a compiled plan, and runs requests through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Literal

import torch

from ..backends import backend_of
from ..executors.blocking import executor_on
from ..executors.capture import Captures
from ..executors.errors import NodeFailure, UndeclaredAccess
from ..executors.names import streams_behind
from ..executors.report import RunReport
from ..executors.run import Executor, run
from ..graph.answers.delay import delayable
from ..graph.errors import GraphError, StepweaveError, shortly
from ..graph.plan import Plan
from ..graph.planner.pools import reuse_distance
from ..graph.verifier.verified import verified
from ..models.causal_lm import CausalLM
from ..models.eagle import EagleHead
from ..models.memory import room_for
from ..nodes.bitmask import MatcherTable
from ..nodes.history import History
from ..nodes.machine import Machine
from ..policies.admission import Eager
from ..policies.chosen import Policies
from ..policies.errors import PolicyError
from ..requests.buckets import powers_of_two
from ..requests.request import Request
from ..requests.table import Limits, RequestTable
from ..testing.checking.mode import Strict

FUTILE_RETRIES = 3
"""How often in a row the engine goes on after failures between which nobody got anywhere."""


class EngineError(StepweaveError):
    """The engine cannot be built from what it was given."""

    code = "SW-ENGINE"


@dataclass
class Totals:
    """Counts over all runs of an engine. Tokens and drafts are settled ones only."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    failed_steps: int = 0  # and were recovered from
    requests: int = 0  # prompts that were handed in, whatever became of them
    failed_requests: int = 0  # prompts that ended with an error, refused ones included
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts' tokens, found in the prefix cache
    seconds: float = 0.0


@dataclass
class Engine:
    """One target model, perhaps a drafter or a head, and the plan that runs them.

    `compile` gets the machine that the nodes run on and returns the plan; it is called once.
    An executor that is no name must know itself how to run where the model lies.
    Raises `EngineError` where drafter or executor do not fit the target, and `UnsoundPlan` for a
    plan that the verifier refuses.
    """

    compile: Callable[[Machine], Plan]
    model: CausalLM
    limits: Limits
    drafter: CausalLM | EagleHead | None = None
    policies: Policies = field(default_factory=Policies)
    prefix_cache: bool = False
    executor: str | Executor = "serial"
    graphs: bool = False  # round decode steps up to few sizes, and capture them on streams
    nvtx: bool = False  # name ops for profilers, where an executor has streams
    torch_threads: int | None = None
    check: Literal["off", "strict"] = "off"
    watchdog_s: float | None = 600.0  # a long prompt on a slow machine is slow, not stuck
    plan: Plan = field(init=False)
    machine: Machine = field(init=False)
    _by_name: tuple[str, Executor] | None = field(init=False, default=None)
    totals: Totals = field(init=False, default_factory=Totals)

    def __post_init__(self) -> None:
        if self.drafter is not None and self.drafter.vocab_size < self.model.vocab_size:
            raise EngineError(
                f"the drafter has a vocabulary of {self.drafter.vocab_size} tokens, the target "
                f"one of {self.model.vocab_size}: they must share one vocabulary; set "
                "nodes.draft.model to a drafter made for this model, or nodes.draft to null"
            )
        switch = getattr(self.drafter, "rope_switch", None)
        if switch is not None and switch != self.limits.rope_switch:
            raise EngineError(
                f"the drafter has an original context of {switch} tokens (rope_type longrope), the "
                f"target one of {self.limits.rope_switch or self.limits.context_length}; set "
                "nodes.draft.model to a drafter of the same, or nodes.draft to null"
            )
        self._refuse_other_devices()
        head = self.drafter if isinstance(self.drafter, EagleHead) else None
        self.model.record_features(None if head is None else head.feature_layers)
        self.machine = Machine(
            limits_or_none=self.limits,
            model_or_none=self.model,
            drafter_or_none=self.drafter if isinstance(self.drafter, CausalLM) else None,
            head_or_none=head,
            acceptance=self.policies.acceptance,
            vocab_size=self.model.vocab_size,
            buckets=powers_of_two(self.limits.max_rows) if self.graphs else (),
        )
        self.plan = verified(self.compile(self.machine))
        self._states = self._new_states()
        caches = [state for state in ("kv", "draft_kv") if state in self._states]
        self._block_reuse = max(reuse_distance(self.plan, state) for state in caches)
        # Where a delay would not come off a wait it would only make steps longer.
        self._delays = not isinstance(self.policies.admission, Eager) and delayable(
            self.plan, "schedule.host", "commit.host.advance"
        )
        by_row = [state for state in ("history", "draft_probs") if state in self._states]
        self._row_reuse = max(reuse_distance(self.plan, state) for state in by_row)

    def new_table(self) -> RequestTable:
        """An empty request table whose pools obey this plan."""
        return RequestTable(
            self.limits,
            row_reuse=self._row_reuse,
            block_reuse=self._block_reuse,
            prefix_cache=self.prefix_cache,
            # A head's keys at the end of a block depend on the token after it.
            cache_tail=int(isinstance(self.drafter, EagleHead)),
            sliding_window=self._sliding_window,
            policies=self.policies if self._delays else replace(self.policies, admission=Eager()),
        )

    def reset(self) -> None:
        """Make caches and history new; a table of before belongs to what they held."""
        self._states = self._new_states()

    def run(
        self, table: RequestTable, requests: Sequence[Request], *, trace: bool = False
    ) -> RunReport:
        """Serve `requests` (and whatever is submitted to `table` meanwhile) until all have ended.

        Rows and blocks are back in their pools afterwards. Where an op fails, the requests of its
        step's batch end with an error that names node, op and step, and a new run goes on with the
        others from what is settled; the report is that of the last run. Raises `StuckWait`,
        `UndeclaredAccess`, and what is wrong with the plan; the requests then keep what was
        settled.
        """
        threads = torch.get_num_threads()
        steps, preemptions = table.steps, table.preemptions
        started = perf_counter()
        try:
            if self.torch_threads is not None:
                torch.set_num_threads(self.torch_threads)
            report = self._serve(table, trace)
        finally:
            torch.set_num_threads(threads)
            totals = self.totals
            totals.seconds += perf_counter() - started
            totals.steps += table.steps - steps
            totals.preemptions += table.preemptions - preemptions
            totals.tokens += sum(len(request.output_ids) for request in requests)
            totals.drafted += sum(request.drafted for request in requests)
            totals.accepted += sum(request.accepted for request in requests)
            totals.prompt_tokens += sum(len(request.prompt_ids) for request in requests)
            totals.cached_tokens += sum(request.cached_tokens for request in requests)
        table.check_conservation()
        return report

    @property
    def captures(self) -> Captures | None:
        """The captured segments, and what became of their steps."""
        return getattr(self.runner(), "captures", None)

    def notes(self) -> list[str]:
        """What is not as somebody might think: merged or skipped weights, steps not replayed."""
        drafter = [] if self.drafter is None else self.drafter.notes
        captured = [] if self.captures is None else self.captures.notes()
        return [*self.model.notes, *drafter, *captured]

    def runner(self) -> Executor:
        """What runs the plan where the model lies: of a name, one for all runs, as it has graphs.

        Raises `StepweaveError` for an unknown name.
        """
        if not isinstance(self.executor, str):
            return self.executor
        if self._by_name is None or self._by_name[0] != self.executor:
            graphs = self.graphs and self.check == "off"
            self._by_name = (
                self.executor,
                executor_on(self.model.device, self.executor, ranges=self.nvtx, graphs=graphs),
            )
        return self._by_name[1]

    def _refuse_other_devices(self) -> None:
        device = self.model.device
        streams = streams_behind(self.executor) if isinstance(self.executor, str) else None
        if streams is not None and streams is not backend_of(device):
            raise EngineError(
                f"executor {streams.name!r} runs on the streams of a device {streams.name!r}, but "
                f"the model is on {f'{device}'!r}; load it with device={streams.name!r}, or use "
                "executor 'threads'"
            )
        if self.drafter is not None and self.drafter.device != device:
            raise EngineError(
                f"the drafter is on {self.drafter.device}, the target on {device}: they must "
                "be on the same device"
            )

    def _serve(self, table: RequestTable, trace: bool) -> RunReport:
        """Run the plan, again after each failure, until nobody is left."""
        futile, finished, before = 0, table.finished, _settled(table)
        runner = self.runner()
        while True:
            states = {**self._states, "requests": table}
            if "matchers" in self.plan.graph.states:
                states["matchers"] = MatcherTable(table.grammars)
            try:
                return run(
                    self.plan,
                    executor=Strict(runner) if self.check == "strict" else runner,
                    states=states,
                    trace=trace,
                    watchdog_s=self.watchdog_s,
                )
            except NodeFailure as failure:
                if not _ends_its_step_only(failure):
                    raise
                step, error = failure.step, _said(failure)
            except StepweaveError:
                raise
            except Exception as failure:  # no op: the memory of the run could not be allocated
                step, error = None, f"no step could begin: {shortly(failure)}"
            self.totals.failed_steps += 1
            table.recover(step, error)
            now = _settled(table)
            moved = table.finished > finished or any(
                tokens > before.get(uid, 0) for uid, tokens in now.items()
            )
            futile, finished, before = (0 if moved else futile + 1), table.finished, now
            if futile > FUTILE_RETRIES:
                table.fail_all(error)
                futile = 0
                table.await_arrival()
            if table.idle:
                return RunReport(steps=0)

    @property
    def _sliding_window(self) -> int | None:
        """How far back any layer of any model looks; None if one of them looks back to the start.

        A drafter shares the target's blocks, so what it may still read is not freed either.
        """
        windows = [self.model.sliding_window]
        if isinstance(self.drafter, CausalLM):
            windows.append(self.drafter.sliding_window)
        elif self.drafter is not None:
            windows.append(None)  # a head looks back to the start
        known = [window for window in windows if window is not None]
        return max(known) if len(known) == len(windows) else None

    def _new_states(self) -> dict[str, object]:
        """What steps change in place on the device, for this plan."""
        limits, declared = self.limits, self.plan.graph.states
        blocks = limits.num_blocks + 1  # the scratch block is the cache's own
        rows = limits.max_rows + 1  # and the last row that of lines of no request
        device, fewer = self.model.device, "lower scheduler.max_rows"
        states: dict[str, object] = {"kv": self.model.new_cache(blocks, limits.block_size)}
        text = rows * (limits.context_length + 1) * 4
        with room_for(f"the text of {limits.max_rows} rows", text, device, fewer):
            states["history"] = History(rows, limits.context_length, device)
        if "draft_kv" in declared and self.drafter is not None:
            states["draft_kv"] = self.drafter.new_cache(blocks, limits.block_size)
        if "draft_probs" in declared:
            shape = (rows, limits.draft_tokens, self.model.vocab_size)
            dtype = torch.promote_types(self.model.dtype, torch.float32)
            drawn = math.prod(shape) * dtype.itemsize
            with room_for(f"what {limits.max_rows} rows drew drafts from", drawn, device, fewer):
                states["draft_probs"] = torch.zeros(shape, dtype=dtype, device=device)
        return states


def _settled(table: RequestTable) -> dict[int, int]:
    """Tokens of each request that has not ended."""
    return {uid: len(request.output_ids) for uid, request in table.requests.items()}


def _ends_its_step_only(failure: NodeFailure) -> bool:
    """Whether the engine may go on: not where the graph itself is wrong, or somebody gave up."""
    cause = failure.__cause__
    if getattr(failure, "__notes__", ()):
        return False  # a worker was left behind inside an op: it may still write what others read
    declared = UndeclaredAccess | GraphError | PolicyError  # faults that a retry would repeat
    return isinstance(cause, Exception) and not isinstance(cause, declared)


def _said(failure: NodeFailure) -> str:
    assert failure.__cause__ is not None, "a node failure has a cause"
    return (
        f"node {failure.node!r}: op {failure.op!r} failed in step {failure.step}: "
        f"{shortly(failure.__cause__)}"
    )
