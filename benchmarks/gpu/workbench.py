"""Engines on random models, requests for them, and what serving them came to."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.executors.capture import Captures
from stepweave.executors.report import OpEvent, RunReport
from stepweave.executors.run import Executor
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.plan import Plan
from stepweave.models.causal_lm import CausalLM
from stepweave.models.tokenizer import StreamDecoder
from stepweave.nodes.draft_model import DRAFT_MODEL
from stepweave.policies.admission import Eager, JustInTime
from stepweave.policies.chosen import Policies
from stepweave.requests.batch import StepBatch
from stepweave.requests.increment import Increment
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.stopping import StopChecker
from stepweave.requests.table import Limits
from stepweave.serving.engine import Engine
from stepweave.serving.pipeline import compiled

from .networks import EOS
from .traces import Traces
from .vocabulary import tokenizer

BLOCK = 16
BATCH = "batch"  # the value that says which rows a step has


@dataclass(frozen=True)
class Pipeline:
    """The decode step that a side runs."""

    depth: int = 2
    draft_tokens: int = 0
    structured: bool = False
    steered: Path | None = None  # traces to follow
    just_in_time: bool = False


def engine(
    pipeline: Pipeline,
    model: CausalLM,
    executor: Executor,
    *,
    rows: int,
    context: int,
    budget: int,
    drafter: CausalLM | None = None,
    graphs: bool = True,
) -> Engine:
    """For `rows` requests at once, each of at most `context` tokens.

    `graphs`: the executor captures, so steps are rounded up to few sizes.
    """
    k = pipeline.draft_tokens
    config = load_config(
        "base",
        {
            "depth": pipeline.depth,
            "scheduler.max_rows": rows,
            "scheduler.token_budget": max(budget, rows * (k + 1)),
            "nodes": _nodes(pipeline),
        },
    )
    assert isinstance(config, PipelineConfig)
    limits = Limits(
        max_rows=rows,
        token_budget=config.scheduler.token_budget,
        block_size=BLOCK,
        num_blocks=rows * -(-(context + 2 * k + BLOCK) // BLOCK),
        context_length=context,
        draft_tokens=k,
        max_queue=1 << 16,
    )
    return Engine(
        lambda resources: compiled(config, resources),
        model,
        limits,
        resources={DRAFT_MODEL: drafter} if k else {},
        executor=executor,
        graphs=graphs,
        policies=Policies(admission=JustInTime() if pipeline.just_in_time else Eager()),
    )


def _nodes(pipeline: Pipeline) -> dict[str, Any]:
    """What the pipeline adds to the plain decode step."""
    nodes: dict[str, Any] = {}
    if pipeline.structured:
        nodes["bitmask"] = {"after": "forward"}
    if pipeline.draft_tokens:
        nodes["draft"] = {"kind": "draft_model", "after": "sample", "tokens": pipeline.draft_tokens}
    if pipeline.steered is not None:
        traces = {"traces": pipeline.steered}
        nodes["steer"] = {"kind": "steer_trace", "after": "forward", **traces}
        nodes["sample"] = {"reads": {"logits": "steered"}}
        if pipeline.draft_tokens:
            nodes["draft"] |= {"kind": "draft_trace", **traces}
    return nodes


def request(
    uid: int,
    prompt: Sequence[int],
    tokens: int,
    vocab: int,
    *,
    traces: Traces | None = None,
    structured: bool = False,
    window: int = 1,
) -> Request:
    """Greedy; it ends after `tokens`, or with its trace, which is that of its number."""
    stops = frozenset() if traces is None else frozenset({EOS})
    seed = 0 if traces is None else uid % len(traces.lengths)
    ids = tuple(prompt)
    return Request(
        uid=uid,
        id=str(uid),
        prompt="",
        prompt_ids=ids,
        params=SamplingParams(max_tokens=tokens, seed=seed, ignore_eos=traces is None),
        max_tokens=tokens,
        stop_token_ids=stops,
        stopper=StopChecker(stops, (), tokens),
        decoder=StreamDecoder(tokenizer(vocab), ids),
        grammar=traces.grammars[seed] if traces is not None and structured else None,
        window=window,
    )


def prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    """Random tokens, none of them the end of text; of different lengths, `length` on average."""
    rng = random.Random(1)
    return [
        [rng.randrange(1, vocab) for _ in range(length + (index % 5 - 2) * (length // 8))]
        for index in range(count)
    ]


@dataclass(frozen=True)
class Served:
    """One run: for each request its tokens, and when it got how many of them (seconds)."""

    tokens: list[list[int]]
    settled: list[list[tuple[float, int]]]
    drafted: int
    accepted: int
    steps: int
    seconds: float
    report: RunReport
    first_s: list[float] = field(default_factory=list)  # from submission to the first token

    @property
    def tpot_s(self) -> float:
        """Mean over the requests of (last − first) / (tokens − 1)."""
        return statistics.fmean(
            (times[-1][0] - times[0][0]) / (sum(n for _, n in times) - times[0][1])
            for times in self.settled
            if len(times) > 1
        )

    @property
    def gaps_s(self) -> list[float]:
        """Between what one request got and what it got next."""
        return [
            after - before for times in self.settled for (before, _), (after, _) in pairwise(times)
        ]

    @property
    def tokens_per_step(self) -> float:
        """Of a row that decodes."""
        tokens = sum(n for times in self.settled for _, n in times[1:])
        return tokens / max(1, sum(len(times) - 1 for times in self.settled))


def serve(
    engine: Engine,
    requests: Sequence[Request],
    *,
    trace: bool = False,
    feed: Callable[[Any, Sequence[Request]], list[float]] | None = None,
) -> Served:
    """Serve all of them; `feed` submits them from another thread and returns when, by request."""
    table = engine.new_table()
    settled: dict[int, list[tuple[float, int]]] = {each.uid: [] for each in requests}

    def deliver(uid: int, increment: Increment) -> None:
        if increment.token_ids:
            settled[uid].append((perf_counter(), len(increment.token_ids)))

    for each in requests:
        each.deliver = partial(deliver, each.uid)
    failed_steps = engine.totals.failed_steps
    began = perf_counter()
    if feed is None:
        sent = [began] * len(requests)
        table.submit_all(requests)
        report = engine.run(table, trace=trace)
    else:
        sent = feed(table, requests)
        report = engine.run(table, trace=trace)
    seconds = perf_counter() - began
    failed = next((each for each in requests if each.error is not None), None)
    if failed is not None:
        raise RuntimeError(f"request {failed.id} failed: {failed.error}")
    if engine.totals.failed_steps != failed_steps:
        raise RuntimeError("a step failed in which no request was left: its time would count")
    times = [settled[each.uid] for each in requests]
    return Served(
        tokens=[list(each.output_ids) for each in requests],
        settled=times,
        drafted=sum(each.drafted for each in requests),
        accepted=sum(each.accepted for each in requests),
        steps=table.steps,
        seconds=seconds,
        report=report,
        first_s=[t[0][0] - at for t, at in zip(times, sent, strict=True)],
    )


@dataclass
class Noting:
    """An executor that also keeps each step's batch, and may delay each schedule on the host."""

    executor: Executor
    delay: Callable[[], None] | None = None
    _plans: dict[int, tuple[Plan, Plan]] = field(default_factory=dict)

    @property
    def captures(self) -> Captures | None:
        found: Captures | None = getattr(self.executor, "captures", None)
        return found

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        if self.delay is not None:
            _, plan = self._plans.setdefault(id(plan), (plan, _delayed(plan, self.delay)))
        return self.executor(plan, replace(given, keep=(*given.keep, BATCH)))


def _delayed(plan: Plan, delay: Callable[[], None]) -> Plan:
    """The same plan, whose `schedule` comes late. Always the same object: captures ask for it."""

    def late(run: Any) -> Any:
        def delayed(context: Any) -> None:
            delay()
            run(context)

        return delayed

    nodes = tuple(
        replace(node, host=tuple(replace(op, run=late(op.run)) for op in node.host))
        if node.name == "schedule"
        else node
        for node in plan.graph.nodes
    )
    return replace(plan, graph=replace(plan.graph, nodes=nodes))


def full_steps(report: RunReport, rows: int) -> set[int]:
    """Steps in which all rows decode."""
    batches: Sequence[StepBatch] = report.kept[BATCH]
    return {
        step
        for step, batch in enumerate(batches)
        if len(batch.rows) == rows and all(row.decodes for row in batch.rows)
    }


def with_launches(plan: Plan, events: Sequence[OpEvent]) -> list[OpEvent]:
    """The same, but host ops that launch end when they have launched.

    What launching takes the host is noted nowhere: it lies between the op and the next one of its
    thread. Where that one waits for something, it cannot be told from the wait and is left out.
    """
    vertices = plan.graph.vertices
    launching = {vertex.launch for vertex in vertices.values() if vertex.launch is not None}
    waiting = {wait.target for wait in plan.waits}
    threads: dict[str, list[OpEvent]] = {}
    found = []
    for event in sorted(events, key=lambda event: event.start_s):
        if vertices[event.op].side == "host":
            threads.setdefault(event.actor, []).append(event)
        else:
            found.append(event)
    for each in threads.values():
        for one, other in pairwise([*each, None]):
            assert one is not None, "only the last has none after it"
            if other is not None and one.op in launching and other.op not in waiting:
                found.append(one._replace(end_s=max(one.end_s, other.start_s)))
            else:
                found.append(one)
    return found


def replayed(executor: object) -> dict[str, Any]:
    """How much of the device work was replayed from graphs, and why the rest was not."""
    captures: Captures | None = getattr(executor, "captures", None)
    if captures is None:
        return {}
    counts = captures.counts.values()
    steps = sum(c.replayed + c.captured + sum(c.eager.values()) for c in counts)
    reasons: dict[str, int] = {}
    for each in counts:
        for why, number in each.eager.items():
            reasons[why] = reasons.get(why, 0) + number
    return {
        "segments": [str(segment) for segment in captures.counts],
        "replayed_share": sum(c.replayed for c in counts) / max(1, steps),
        "captured": sum(c.captured for c in counts),
        "as_usual": reasons,
        "in_pieces": sum(each.replayed for each in captures.pieces.values()),
    }


def forget_counts(executor: object) -> None:
    """Count replays anew from here on."""
    captures: Captures | None = getattr(executor, "captures", None)
    for counts in () if captures is None else captures.counts.values():
        counts.replayed = counts.captured = 0
        counts.eager.clear()


def same_tokens(sides: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Raises `AssertionError` if two sides gave different tokens."""
    names = list(sides)
    for name in names[1:]:
        for index, (a, b) in enumerate(zip(sides[names[0]], sides[name], strict=True)):
            assert list(a) == list(b), f"request {index}: {name} and {names[0]} differ"
