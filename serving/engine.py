"""The engine: it owns the models, the caches and a compiled plan, and runs requests through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import torch

from ..executors.report import RunReport
from ..executors.run import run
from ..graph.errors import StepweaveError
from ..graph.plan import Plan
from ..graph.pools import reuse_distance
from ..models.causal_lm import CausalLM
from ..nodes.bitmask import MatcherTable
from ..nodes.machine import Machine
from ..policies.acceptance import ACCEPTANCE
from ..requests.request import Request
from ..requests.table import Limits, RequestTable

ExecutorName = Literal["serial", "threads"]


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
    seconds: float = 0.0


@dataclass
class Engine:
    """One target model, perhaps a drafter, and the plan that runs them.

    `compile` gets the machine that the nodes run on and returns the plan; it is called once.
    Raises `EngineError` where the drafter does not fit the target.
    """

    compile: Callable[[Machine], Plan]
    model: CausalLM
    limits: Limits
    drafter: CausalLM | None = None
    acceptance: str = "coupled"
    executor: ExecutorName = "serial"
    torch_threads: int | None = None
    watchdog_s: float | None = 600.0  # a long prompt on a slow machine is slow, not stuck
    plan: Plan = field(init=False)
    totals: Totals = field(init=False, default_factory=Totals)

    def __post_init__(self) -> None:
        if self.drafter is not None and self.drafter.vocab_size < self.model.vocab_size:
            raise EngineError(
                f"the drafter knows {self.drafter.vocab_size} tokens, the target "
                f"{self.model.vocab_size}: they must share one vocabulary"
            )
        machine = Machine(
            limits_or_none=self.limits,
            model_or_none=self.model,
            drafter_or_none=self.drafter,
            acceptance_or_none=ACCEPTANCE[self.acceptance],
            couples_drafts=self.acceptance == "coupled",
            vocab_size=self.model.vocab_size,
        )
        self.plan = self.compile(machine)
        blocks = self.limits.num_blocks + 1  # the scratch block is the cache's own
        self._states: dict[str, object] = {
            "kv": self.model.new_cache(blocks, self.limits.block_size)
        }
        if self.drafter is not None:
            self._states["draft_kv"] = self.drafter.new_cache(blocks, self.limits.block_size)
        self._block_reuse = max(reuse_distance(self.plan, state) for state in self._states)

    def new_table(self) -> RequestTable:
        """An empty request table whose pools obey this plan."""
        return RequestTable(self.limits, block_reuse=self._block_reuse)

    def run(
        self, table: RequestTable, requests: Sequence[Request], *, trace: bool = False
    ) -> RunReport:
        """Serve `requests` (and whatever is submitted to `table` meanwhile) until all have ended.

        Rows and blocks are back in their pools afterwards. Raises what the executor raises; the
        requests then keep what was settled.
        """
        states = {**self._states, "requests": table}
        if "matchers" in self.plan.graph.states:
            states["matchers"] = MatcherTable()
        threads = torch.get_num_threads()
        started = perf_counter()
        try:
            if self.torch_threads is not None:
                torch.set_num_threads(self.torch_threads)
            report = run(
                self.plan,
                executor=self.executor,
                states=states,
                trace=trace,
                watchdog_s=self.watchdog_s,
            )
        finally:
            torch.set_num_threads(threads)
            totals = self.totals
            totals.seconds += perf_counter() - started
            totals.steps += table.steps
            totals.preemptions += table.preemptions
            totals.tokens += sum(len(request.output_ids) for request in requests)
            totals.drafted += sum(request.drafted for request in requests)
            totals.accepted += sum(request.accepted for request in requests)
        table.check_conservation()
        return report
