"""What the ops of a pipeline cost: the pipeline itself, run and timed at several batch sizes.

Costs depend on who else is running, so they are taken under the executor that the pipeline has,
with all its threads. Steps in which a prompt is computed do not count, nor those with fewer rows
than asked for, nor, where steps are recorded, those that were not replayed: they are few in the
long run, and slower. The first round warms up; in each of the others all batch sizes have their
turn, so that a machine that drifts does so for all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from operator import attrgetter
from typing import NamedTuple

from ..configs.prompts import PromptLine
from ..configs.schema import PipelineConfig, PoliciesConfig
from ..executors.capture import Captures
from ..executors.recorder import Recorder
from ..executors.report import RunReport
from ..executors.run import Executor
from ..executors.run_arguments import RunArguments
from ..graph.plan import Plan
from ..graph.planner.compile import plan_for
from ..nodes.values import BATCH
from ..requests.batch import StepBatch
from ..timelines.profile import Spread, op_times, spreads, step_times
from .drafting_costs import DraftingCosts, lengths
from .llm import LLM
from .profile_error import ProfileError as ProfileError
from .resumption_costs import ResumptionCosts, resumption_costs

REQUESTS_PER_ROW = 6  # in a round: rows come and go, and most steps have all of them

OnRound = Callable[[int, int | None, int, int], None]
"""(rows, drafts that are asked for, round, steps that count so far); None: as lines ask."""


@dataclass(frozen=True)
class Profiled:
    """One batch size: how long each op took, and the time per step, measured and predicted."""

    rows: int
    ops: Mapping[str, Spread]
    period: Spread
    predicted_us: float  # by the plan, of the medians
    predicted_mean_us: float  # of the means: what is left of the error is not the spread's doing
    tokens_per_step: float  # of one row, the steps counted that ran past its end

    @property
    def error(self) -> float:
        """Predicted over measured time per step, less one; of medians."""
        return self.predicted_us / self.period.p50 - 1

    @property
    def mean_error(self) -> float:
        """The same of means."""
        return self.predicted_mean_us / self.period.mean - 1


@dataclass(frozen=True)
class Profile:
    """What was found at each batch size; what resumption costs, where requests may be swapped; what
    each number of drafts costs, where that was asked for.
    """

    sizes: Sequence[Profiled]
    resumption: ResumptionCosts | None
    drafting: DraftingCosts | None


FEWEST = 8
"""Replayed steps that are enough to leave out all others."""


class _Ran(NamedTuple):
    """What is known of one run."""

    report: RunReport  # with its events, and what each step's batch was
    replayed: frozenset[int]  # of its steps


@dataclass
class _Recording:
    """An executor that traces, and keeps what each step's batch was."""

    executor: Executor
    runs: list[_Ran] = field(default_factory=list)

    @property
    def captures(self) -> Captures | None:
        """What the executor has captured; None if it captures nothing."""
        return getattr(self.executor, "captures", None)

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        recorder = Recorder()
        kept = (*given.keep, BATCH.name)
        report = self.executor(plan, replace(given, trace=recorder, keep=kept))
        report = replace(report, events=recorder.latest.events())
        captures = self.captures
        replayed = frozenset[int]() if captures is None else captures.replayed()
        self.runs.append(_Ran(report, replayed))
        return report


def profile(
    config: PipelineConfig,
    lines: Sequence[PromptLine],
    *,
    rows: Sequence[int],
    rounds: int,
    drafts: bool = False,
    on_round: OnRound | None = None,
) -> Profile:
    """Time the pipeline at each batch size; `lines` are served again and again as they are.

    Of a pipeline with other plans, the one that a run begins with is timed. `drafts`: it has a
    drafter, and is timed with fewer drafts as well, whatever its policy would offer.

    Raises `ProfileError` where a request fails, no two steps in a row have all rows decoding, or
    there is no drafter that `drafts` could be about.
    """
    scheduler = config.scheduler.model_copy(update={"max_rows": max(rows)})
    alone: dict[str, object] = {"check": "off", "plans": {}}
    numbers = _numbers_of_drafts(config) if drafts else ()
    if drafts:
        full = {"drafting": PoliciesConfig().drafting}
        alone["policies"] = config.policies.model_copy(update=full)
    config = config.model_copy(update={"scheduler": scheduler, **alone})
    llm = LLM(pipeline=config)
    recording = _Recording(llm.engine.runner())
    sizes = [_Size(count, lines) for count in rows]
    asking = {
        number: [line.model_copy(update={"draft_tokens": number}) for line in lines]
        for number in numbers
    }
    narrow = [_Size(count, asking[each], each) for each in asking for count in rows]
    try:
        resumption = resumption_costs(llm, rounds)
        llm.engine.executor = recording
        for number in range(rounds + 1):
            for size in (*sizes, *narrow):
                tokens = size.serve(llm)
                if number:
                    size.count(recording.runs, tokens)
                recording.runs.clear()
                if on_round is not None:
                    on_round(size.rows, size.drafts, number, size.counted.steps)
    finally:
        llm.close()
    found = [size.profiled(llm.plan, config.executor) for size in sizes]
    return Profile(found, resumption, _drafting(narrow, llm.plan, config.executor))


def _numbers_of_drafts(config: PipelineConfig) -> tuple[int, ...]:
    if config.drafter is None:
        raise ProfileError(
            "this pipeline has no drafter whose numbers of drafts could be timed: leave out "
            "--drafts, or add a drafter, as async_ngram has one"
        )
    return lengths(config.drafter.tokens)


def _drafting(narrow: Sequence[_Size], plan: Plan, executor: str) -> DraftingCosts | None:
    """What was found with each number of drafts; None: none was asked for."""
    timed: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for size in narrow:
        assert size.drafts is not None
        timed[size.rows][size.drafts] = size.profiled(plan, executor).period.p50
    return DraftingCosts.of(timed) if timed else None


@dataclass
class _Samples:
    """What was timed in some steps."""

    ops: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    periods: list[float] = field(default_factory=list)
    steps: int = 0

    def count(self, report: RunReport, steps: Collection[int]) -> None:
        for op, times in op_times(report.events, steps).items():
            self.ops[op] += times
        self.periods += step_times(report.events, steps)
        self.steps += len(steps)


@dataclass
class _Size:
    """One batch size in the making, and where it matters how many drafts its `lines` ask for."""

    rows: int
    lines: Sequence[PromptLine]
    drafts: int | None = None
    every: _Samples = field(default_factory=_Samples)  # of all steps that have its rows
    replayed: _Samples = field(default_factory=_Samples)
    tokens: int = 0  # after the first of each request
    row_steps: int = 0  # rows that decoded, over all steps

    @property
    def counted(self) -> _Samples:
        """What counts."""
        return self.replayed if len(self.replayed.periods) >= FEWEST else self.every

    def serve(self, llm: LLM) -> int:
        """Requests enough to keep all rows busy for a while; their tokens after the first."""
        llm.engine.limits = replace(llm.engine.limits, max_rows=self.rows)
        llm.service.renew()  # no more rows than that, nothing cached
        count = max(REQUESTS_PER_ROW * self.rows, len(self.lines))
        lines = [
            line.model_copy(update={"id": str(index)})
            for index, line in enumerate(islice(cycle(self.lines), count))
        ]
        tokens = 0
        for output in llm.generate(lines, progress=False):
            if output.failed:
                raise ProfileError(f"request {output.id} failed: {output.error}")
            for each in output.choices or (output,):
                tokens += max(0, len(each.token_ids) - 1)
        return tokens

    def count(self, runs: Sequence[_Ran], tokens: int) -> None:
        self.tokens += tokens
        for report, replayed in runs:
            batches: Sequence[StepBatch] = report.kept[BATCH.name]
            self.row_steps += sum(row.decodes for batch in batches for row in batch.rows)
            full = {
                step
                for step, batch in enumerate(batches)
                if len(batch.rows) == self.rows and all(row.decodes for row in batch.rows)
            }
            self.every.count(report, full)
            self.replayed.count(report, full & replayed)

    def profiled(self, plan: Plan, executor: str) -> Profiled:
        counted = self.counted
        if not counted.periods:
            raise ProfileError(
                f"no two steps in a row had {self.rows} rows decoding: give more prompts, longer "
                "answers (--max-tokens), or fewer rows (--rows)"
            )
        found = spreads(counted.ops)
        medians, means = (
            _predicted(plan, {op: pick(spread) for op, spread in found.items()}, executor)
            for pick in (attrgetter("p50"), attrgetter("mean"))
        )
        per_step = self.tokens / max(1, self.row_steps)
        return Profiled(self.rows, found, Spread.of(counted.periods), medians, means, per_step)


def _predicted(plan: Plan, found: Mapping[str, float], executor: str) -> float:
    """The time per step of the plan that ran, its orders and waits, at these costs."""
    costs = {op: found.get(op, 0.0) for op in plan.graph.vertices}
    if executor == "serial":
        return sum(costs.values())
    return plan_for(plan.graph, plan.actors, costs, plan.slots).period_us
