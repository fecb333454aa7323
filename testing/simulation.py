"""A decode engine on one thread, its ops interleaved at random, under faults, from one seed.

A seed draws a small engine, requests that arrive while it runs, and what goes wrong: exceptions at
any op of any step, buffers that cannot be allocated, grammars that fail, drafters that offer
nonsense, listeners that raise, cancelled requests, a queue that is full. Then everybody must have
ended with a result or an error of his own; no row or block may ever be lost; and whoever was not
hit must have what he gets alone, on an engine without faults. Some seeds run in strict mode too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

from torch import Tensor

from ..graph.node import OpContext, Run
from ..nodes.data import DraftTable
from ..policies.acceptance import Coupled, Rejection
from ..policies.chosen import Policies
from ..requests.batch import StepBatch
from ..requests.request import Request, RequestError, SamplingParams, TokenLogprob
from ..serving.engine import Engine
from ..structured.grammar import GrammarSpec
from .checking.guards import outside_ops
from .engines import VOCAB, Method, TinyConfig, fitted, serve, tiny_engine, tiny_request
from .exploring.nodes import Interleaved
from .faults import Changing, FaultyDecoder, FaultyGrammar, InjectedFault, with_faults

CONFIGS = 48  # engines that seeds choose from: each is built once
ASKED = 32  # requests that they choose from: each is served alone once per way of drafting
CONTEXT = 64
MOST_SCHEDULES = 2000  # no simulation needs as many

SCHEDULE, DRAFT = "schedule.host", "draft.device"


class SimulationError(AssertionError):
    """A simulation broke a promise; the seed says which, and is enough to see it again."""


@dataclass(frozen=True)
class Report:
    """What a simulation came to."""

    seed: int
    config: TinyConfig
    reasons: Counter[str]  # how requests ended: a finish reason, or "refused"
    failures: int  # failed steps that the engine recovered from
    steps: int
    untouched: int  # requests that ended as they do alone


@dataclass(frozen=True)
class DrawnRequest:
    """A request before it is made."""

    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Alone:
    """What a request comes to without neighbours and without faults."""

    tokens: list[int]
    text: str
    reason: str | None
    drafted: int
    accepted: int
    logprobs: list[TokenLogprob]


@dataclass
class Fault:
    """An op that raises at its `call`-th call, counted over all runs; again and again if it is
    `lasting`.
    """

    op: str
    call: int
    after: bool  # when it has done its work, not before
    lasting: bool = False

    def due(self, op: str, call: int, after: bool) -> bool:
        if (op, after) != (self.op, self.after):
            return False
        return call >= self.call if self.lasting else call == self.call


def simulate_faults(seed: int) -> Report:
    """Run one simulation. Raises `SimulationError` that names the seed."""
    draw = Random(seed)
    config = tiny_config(draw.randrange(CONFIGS))
    world = World(seed, draw, config, engine_of(config))
    try:
        world.run()
        return world.report()
    except Exception as error:
        raise SimulationError(
            f"simulate_faults({seed}), {config}: {type(error).__name__}: {error}\n  "
            + "\n  ".join(map(str, world.story))
        ) from error


@cache
def tiny_config(number: int) -> TinyConfig:
    """One of the engines that a seed may draw."""
    draw = Random(f"config {number}")
    methods: Sequence[Method | None] = (
        *(None, "draft_model", "eagle", "eagle3", "ngram"),
        *("mtp", "medusa", "suffix"),
    )
    method = methods[number % len(methods)]
    return TinyConfig(
        depth=draw.choice([1, 2, 2, 3]),
        draft_tokens=0 if method is None else draw.choice([1, 2, 3]),
        method=method or "draft_model",
        padded=draw.random() < 0.7,
        structured=draw.random() < 0.6,
        policies=Policies(acceptance=Coupled() if draw.random() < 0.8 else Rejection()),
        prefix_cache=draw.random() < 0.5,
        num_blocks=draw.choice([9, 12, 40]),
        token_budget=draw.choice([6, 12, 64]),
        max_rows=draw.choice([2, 3, 4]),
        context=CONTEXT,
    )


@cache
def engine_of(config: TinyConfig) -> Faulty:
    return Faulty(config)


class Faulty:
    """An engine whose ops ask the world that is on at present."""

    def __init__(self, config: TinyConfig) -> None:
        self.engine: Engine = tiny_engine(config)
        self.engine.plan = with_faults(self.engine.plan, self._around, self._allocating)
        self.world: World | None = None

    def _around(self, name: str, ctx: OpContext, run: Run) -> None:
        assert self.world is not None, "nobody runs this engine"
        self.world.around(name, ctx, run)

    def _allocating(self, name: str) -> None:
        assert self.world is not None, "nobody runs this engine"
        self.world.allocating(name)


@cache
def asked(number: int) -> DrawnRequest:
    """One of the requests that a seed may draw; several begin alike."""
    draw = Random(f"request {number}")
    stem = [Random(f"stem {number % 3}").randrange(3, VOCAB) for _ in range(9)]
    tail = [draw.randrange(3, VOCAB) for _ in range(draw.randrange(1, 6))]
    prompt = (*stem[: draw.choice([0, 5, 9])], *tail)
    grammars = [
        None,
        GrammarSpec.from_request({"regex": "[a-z]{2,9}( [0-9]{1,3}){0,2}"}),
        GrammarSpec.from_request({"choice": ["yes", "no", "not at all"]}),
        GrammarSpec.from_request(
            {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}
        ),
    ]
    return DrawnRequest(
        prompt,
        SamplingParams(
            max_tokens=draw.randrange(1, 10),
            temperature=draw.choice([0.0, 0.0, 0.9]),
            seed=draw.randrange(1000),
            stop=draw.choice([(), (), ("e",), ("th", "o ")]),
            stop_token_ids=draw.choice([(), (), tuple(range(100, 131))]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.3]),
            logprobs=draw.choice([None, None, 1]),
            draft_tokens=draw.choice([None, None, None, 1, 0]),
            structured_outputs=draw.choice(grammars),
        ),
    )


def params_for(asks: DrawnRequest, config: TinyConfig) -> SamplingParams:
    return asks.params if config.structured else replace(asks.params, structured_outputs=None)


@cache
def alone(number: int, config: TinyConfig) -> Alone:
    """The request by itself, step by step, on the reference executor."""
    asks = asked(number)
    request = tiny_request(0, asks.prompt, params_for(asks, config), context=CONTEXT)
    serve(_plain_engine(config), [request])
    return Alone(
        list(request.output_ids),
        request.text,
        request.finish_reason,
        request.drafted,
        request.accepted,
        list(request.logprobs),
    )


@cache
def _plain_engine(config: TinyConfig) -> Engine:
    return tiny_engine(config)


def plainly(config: TinyConfig) -> TinyConfig:
    """What of a configuration may change what a request comes to; the rest as it is simplest."""
    return TinyConfig(
        draft_tokens=config.draft_tokens,
        method=config.method,
        structured=config.structured,
        policies=config.policies,
        context=CONTEXT,
    )


@dataclass
class Guest:
    """One request of a simulation, and what the world knows of it that the engine does not."""

    number: int
    request: Request
    streamed: list[str] = field(default_factory=list)
    refused: bool = False
    cancelled: bool = False
    faulty: bool = False  # its grammar or its decoder may raise
    blamed: tuple[str, ...] | None = None  # it was in a failing batch: what its error must say


class World:
    """One simulation: its requests and its faults, all drawn before it begins."""

    def __init__(self, seed: int, draw: Random, config: TinyConfig, faulty: Faulty) -> None:
        self.faulty = faulty
        self.seed, self.draw, self.config, self.engine = seed, draw, config, faulty.engine
        self.engine.limits = replace(self.engine.limits, max_queue=draw.choice([1, 2, 100]))
        self.engine.check = "strict" if seed % 12 == 0 else "off"
        self.engine.executor = Interleaved(seed) if draw.random() < 0.85 else "serial"
        self.table = self.engine.new_table()
        self.story: list[object] = []
        self.broken: list[str] = []
        self.calls: Counter[str] = Counter()
        self.batches: dict[int, list[Guest]] = {}  # of this run, by step
        self.open = False
        self.guests = [self._guest(uid) for uid in range(draw.randrange(2, 7))]
        self.to_come = list(self.guests)
        self.arrivals = sorted(draw.choice([0, 0, 1, 3, 8, 15]) for _ in self.guests)
        self.cancels = {
            draw.randrange(2, 25): draw.randrange(len(self.guests))
            for _ in range(draw.choice([0, 0, 1, 2]))
        }
        ops = list(self.engine.plan.graph.vertices)
        self.faults = [
            Fault(draw.choice(ops), draw.randrange(1, 25), draw.random() < 0.5)
            for _ in range(draw.choice([0, 1, 1, 2, 3]))
        ]
        self.lasting = draw.random() < 0.06
        if self.lasting:
            self.faults = [replace(fault, lasting=True) for fault in self.faults]
        allocated = [name for name, v in self.engine.plan.graph.values.items() if v.allocate]
        self.unallocated: dict[str, int] = {}
        if draw.random() < 0.15:
            self.unallocated[draw.choice(allocated)] = draw.randrange(1, 4)
            self.faults = self.faults[:2]  # with four the engine may give up, rightly
        # Wrong drafts change what is drawn where drafts are judged by what they were drawn from.
        wrong = config.policies.acceptance.exact and draw.random() < 0.2
        self.wrong_drafts = draw.choice([0.2, 1.0]) if wrong else 0.0

    def _guest(self, uid: int) -> Guest:
        number, draw = self.draw.randrange(ASKED), self.draw
        asks = asked(number)
        request = tiny_request(uid, asks.prompt, params_for(asks, self.config), context=CONTEXT)
        guest = Guest(number, fitted(self.engine, request))
        request.deliver = lambda increment: guest.streamed.append(increment.text)
        if draw.random() < 0.08:
            request.decoder = FaultyDecoder(request.decoder, draw.randrange(1, 5))
            guest.faulty = True
        if request.grammar is not None and draw.random() < 0.3:
            kind = draw.choice(["matcher", "fill", "advance"])
            request.grammar = FaultyGrammar(request.grammar, {kind: draw.randrange(1, 6)})
            guest.faulty = True
        return guest

    # -- while it runs ---------------------------------------------------------------------

    def run(self) -> None:
        self.faulty.world = self
        self.engine.reset()
        self.table.open()
        self.open = True
        self.failures = self.engine.totals.failed_steps
        try:
            self.engine.run(self.table)
        finally:
            self.faulty.world = None

    def around(self, name: str, ctx: OpContext, run: Run) -> None:
        """One op of one step, with what goes wrong at it."""
        self.calls[name] += 1
        call = self.calls[name]
        if name == SCHEDULE:
            self._before_schedule(call)
        self._maybe_fail(name, ctx.step, call, after=False)
        changes: dict[str, Callable[[Any], Any]] = {}
        if name == SCHEDULE:
            changes["batch"] = lambda batch: self._scheduled(ctx.step, batch)
        if name == DRAFT and self.wrong_drafts:
            changes["drafts"] = self._spoiled
        run(Changing(ctx, changes) if changes else ctx)
        if name in (SCHEDULE, "commit.host.finish"):
            self._check_conservation(name, ctx.step)
        self._maybe_fail(name, ctx.step, call, after=True)

    def allocating(self, name: str) -> None:
        """A buffer of `name` is to be allocated. Raises `InjectedFault` where that is to fail."""
        self.calls[f"allocate {name}"] += 1
        due = self.unallocated.get(name)
        count = self.calls[f"allocate {name}"]
        if due is not None and (count >= due if self.lasting else count == due):
            self.story.append(f"no memory for {name}")
            self.batches.clear()
            if self.lasting:
                self._arrive(len(self.to_come))  # nothing will ever be scheduled again
            raise InjectedFault(f"no memory for {name}, on purpose")

    def _maybe_fail(self, name: str, step: int, call: int, *, after: bool) -> None:
        if not any(fault.due(name, call, after) for fault in self.faults):
            return
        self.story.append(f"{name} of step {step} fails {'after' if after else 'before'} its work")
        with outside_ops():
            for guest in self.batches.get(step, ()):
                if guest.request.phase != "done" and guest.blamed is None:
                    guest.blamed = (repr(name), f"failed in step {step}", "on purpose")
        self.batches.clear()  # the next step is one of another run
        raise InjectedFault("failed on purpose")

    def _before_schedule(self, call: int) -> None:
        if call > MOST_SCHEDULES:
            self.broken.append("it does not end")
            for guest in self.guests:
                self.table.cancel(guest.request.uid)
        uid = self.cancels.get(call)
        if uid is not None and self.guests[uid] not in self.to_come:
            self.guests[uid].cancelled = True
            self.table.cancel(uid)
        due = sum(at < call for at in self.arrivals) - (len(self.guests) - len(self.to_come))
        self._arrive(due)
        while self.to_come and not self._anybody():
            self._arrive(1)
        if self.open and not self.to_come:
            self.open = False
            self.table.close()

    def _anybody(self) -> bool:
        here = (guest for guest in self.guests if guest not in self.to_come)
        return any(g.request.phase != "done" and not (g.refused or g.cancelled) for g in here)

    def _arrive(self, count: int) -> None:
        for _ in range(count):
            guest = self.to_come.pop(0)
            try:
                self.table.submit(guest.request)
            except RequestError as error:
                guest.refused = error.code == "SW-QUEUE-FULL"
        if self.open and not self.to_come:
            self.open = False
            self.table.close()

    def _scheduled(self, step: int, batch: StepBatch) -> StepBatch:
        self.batches[step] = [self.guests[row.request.uid] for row in batch.rows]
        return batch

    def _spoiled(self, table: DraftTable) -> DraftTable:
        """Some drafts are none, or no tokens."""
        tokens = table.tokens.clone()
        for place in range(tokens.numel()):
            if self.draw.random() < self.wrong_drafts:
                tokens.view(-1)[place] = self.draw.choice([-1, -7, VOCAB, 1 << 40])
        spoiled: Tensor = tokens
        return DraftTable(spoiled, table.tags)

    def _check_conservation(self, name: str, step: int) -> None:
        try:
            self.table.check_conservation()
        except Exception as error:  # raised here, the engine would take it for one more fault
            self.broken.append(f"after {name} of step {step}: {type(error).__name__}: {error}")

    # -- afterwards ------------------------------------------------------------------------

    def report(self) -> Report:
        """Raises `AssertionError` for a broken promise."""
        assert not self.broken, self.broken[0]
        assert not self.to_come, "a request never arrived"
        assert self.table.idle, "the engine stopped before all had ended"
        self.table.check_conservation()
        assert not self.table.request_slots.held, "rows leaked"
        assert not self.table.blocks.pool.held, "blocks leaked"
        reasons: Counter[str] = Counter()
        untouched = 0
        for guest in self.guests:
            if guest.refused:
                assert guest.request.phase == "waiting", "refused, but served"
                reasons["refused"] += 1
                continue
            reasons[str(guest.request.finish_reason)] += 1
            untouched += self._check(guest)
        failures = self.engine.totals.failed_steps - self.failures
        return Report(self.seed, self.config, reasons, failures, self.table.steps, untouched)

    def _check(self, guest: Guest) -> bool:
        """Whether the request ended as it does alone; if it may not have, it must be a part."""
        request, expected = guest.request, alone(guest.number, plainly(self.config))
        who = f"request {request.uid} ({request.finish_reason}, {request.error})"
        assert request.phase == "done", f"{who} has not ended"
        assert "".join(guest.streamed) == request.text or guest.faulty, f"{who}: streamed otherwise"
        count = len(request.output_ids)
        assert request.output_ids == expected.tokens[:count], (
            f"{who}: {request.output_ids}, not {expected.tokens}"
        )
        assert request.logprobs == expected.logprobs[:count] or _near(
            request.logprobs, expected.logprobs[:count]
        ), f"{who}: other log-probabilities"
        assert request.drafted >= request.accepted >= 0, f"{who}: accepted more than was drafted"
        assert request.accepted <= max(0, count - 1), f"{who}: accepted more than was written"
        if request.finish_reason == "cancelled":
            assert guest.cancelled, f"{who}, but nobody cancelled it"
        elif request.finish_reason == "error":
            assert request.error, f"{who}: without a word"
            if guest.blamed is not None:
                assert all(part in request.error for part in guest.blamed), f"{who}: {guest.blamed}"
            else:
                assert guest.faulty or self.lasting, f"{who}, but it was in no batch that failed"
                assert "on purpose" in request.error, f"{who}: by itself"
        else:
            assert guest.blamed is None, f"{who}, but its batch failed: {guest.blamed}"
            assert request.output_ids == expected.tokens, f"{who}: ended early"
            assert request.finish_reason == expected.reason, f"{who}, not {expected.reason}"
            assert request.text == expected.text, f"{who}: {request.text!r}, not {expected.text!r}"
            if not self.wrong_drafts:
                counts = (request.drafted, request.accepted)
                assert counts == (expected.drafted, expected.accepted), f"{who}: {counts} drafts"
            return True
        text = request.text.rstrip("\ufffd")  # of a character whose last bytes did not come
        assert expected.text.startswith(text), f"{who}: {request.text!r}"
        return False


def _near(found: Sequence[TokenLogprob], expected: Sequence[TokenLogprob]) -> bool:
    return len(found) == len(expected) and all(
        a.token == b.token and abs(a.logprob - b.logprob) < 1e-6
        for a, b in zip(found, expected, strict=True)
    )
