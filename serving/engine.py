"""The engine: it owns the models, the caches and a compiled plan, and runs requests through it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, TypeVar

import torch

from ..backends import backend_of
from ..backends.executor_names import streams_behind
from ..executors.blocking import executor_on
from ..executors.capture import Captures
from ..executors.course import REMEMBERED, Course, Turned
from ..executors.errors import NodeFailure, UndeclaredAccess, left_behind
from ..executors.recorder import Recorder
from ..executors.report import RunReport
from ..executors.run import Executor, run
from ..graph.errors import GraphError, StepweaveError, shortly
from ..graph.node import State
from ..graph.parameters import Resource, Resources
from ..graph.plan import Plan
from ..graph.raised import raised_at
from ..models.causal_lm import CausalLM
from ..models.loading import Loading
from ..nodes.decode_step import copies_blocks, handed_on_after, may_be_delayed
from ..nodes.ops.telling import watch_alike
from ..nodes.values import (
    ACCEPTANCE,
    BLOCKS,
    BUCKETS,
    GROUP,
    HOST_BLOCKS,
    LIMITS,
    LINKS,
    LOADING,
    PAGES,
    REQUEST_SLOTS,
    TABLE,
    TARGET,
)
from ..policies.admission import Eager
from ..policies.chosen import Policies
from ..policies.errors import PolicyError
from ..requests.attachments import Room
from ..requests.buckets import every_size, powers_of_two
from ..requests.inbox import Inbox
from ..requests.table import Limits, RequestTable
from ..requests.totals import Totals
from ..requests.witness import Witness
from ..testing.checking.mode import Strict
from .plans import USUAL, Load, Plans, Steer, stay

T = TypeVar("T")

LOG = logging.getLogger("stepweave.engine")

FUTILE_RETRIES = 3
"""How often in a row the engine goes on after failures between which nobody got anywhere."""


class EngineError(StepweaveError):
    """The engine cannot be built from what it was given."""

    code = "SW-ENGINE"


@dataclass
class Engine:
    """One target model and the plan that runs it.

    `compile` gets the resources of the graph and returns its plan; it is called once. `others` do
    so for other plans, to which a run goes over between two steps where `steer` says so.
    `resources` are brought beside the target, as a drafter that is loaded already. An executor that
    is no name must know itself how to run where the model lies. Raises `EngineError` where the
    executor does not fit the target, `UnsoundPlan` for a plan that the verifier refuses, and
    whatever the loading of weights raises.
    """

    compile: Callable[[Resources], Plan]
    model: CausalLM
    limits: Limits
    resources: Mapping[Resource[Any], object] = field(default_factory=dict)
    inbox: Callable[[int], Inbox] = Inbox  # of so many requests that may wait
    witness: Witness | None = None  # compares what steps come to, where several engines run alike
    policies: Policies = field(default_factory=Policies)
    prefix_cache: bool = False
    executor: str | Executor = "serial"
    graphs: bool = False  # round decode steps up to few sizes, and capture them on streams
    pieces: int = 0  # tokens of the largest step with prompts that is captured in pieces
    nvtx: bool = False  # name ops for profilers, where an executor has streams
    torch_threads: int | None = None
    check: Literal["off", "strict"] = "off"
    watchdog_s: float | None = 600.0  # a long prompt on a slow machine is slow, not stuck
    others: Mapping[str, Callable[[Resources], Plan]] = field(default_factory=dict)
    steer: Steer = stay
    turned: deque[Turned] = field(init=False)  # the latest switches, of all runs
    plan: Plan = field(init=False)
    buckets: tuple[int, ...] = field(init=False)
    _plans: Plans = field(init=False)
    _at: str = field(init=False, default=USUAL)
    _by_name: tuple[tuple[str, bool], Executor] | None = field(init=False, default=None)
    totals: Totals = field(init=False, default_factory=Totals)
    _found: Resources = field(init=False)
    _tail: int = field(init=False, default=0)
    _window: int = field(init=False, default=0)
    _states: dict[str, object] = field(init=False)
    _began: float | None = field(init=False, default=None)  # when the run began that is on

    def __post_init__(self) -> None:
        self._refuse_other_devices()
        # Whoever wants other hidden states than the last says so when it is made.
        self.model.record_features(None)
        self.turned = deque(maxlen=REMEMBERED)
        sizes = every_size if backend_of(self.model.device).on_host else powers_of_two
        self.buckets = sizes(self.limits.max_rows) if self.graphs else ()
        brought: dict[Resource[Any], object] = {
            TARGET: self.model,
            LIMITS: self.limits,
            BUCKETS: self.buckets,
            LOADING: Loading(),
            ACCEPTANCE: self.policies.acceptance,
        }
        self._found = Resources({**brought, **self.resources})
        compiled = {USUAL: self.compile, **self.others}
        self._plans = Plans.of({name: each(self._found) for name, each in compiled.items()})
        self.plan = self._plans.by_name[USUAL]
        if (links := self._found.get(LINKS)) is not None:
            watch_alike(links, self.model)
        self.reset()
        self._tail, self._window = self._kept()

    def new_table(self) -> RequestTable:
        """An empty request table whose pools obey this plan."""
        # Where a delay would not come off a wait it would only make steps longer.
        policies = self.policies
        plans = self._plans.by_name.values()
        if not isinstance(policies.admission, Eager) and not all(map(may_be_delayed, plans)):
            policies = replace(policies, admission=Eager())
        hosts: list[Any] = [
            self._states[state.name] for state in self._lasting if state.keys == HOST_BLOCKS
        ]
        rooms: list[Any] = [
            self._states[state.name] for state in self._lasting if state.keys == PAGES
        ]
        return RequestTable(
            self.limits,
            learning=self._learning,
            slot_leases=self._plans.leases(REQUEST_SLOTS),
            block_leases=self._plans.leases(BLOCKS),
            prefix_cache=self.prefix_cache,
            cache_tail=self._tail,
            sliding_window=self._window or None,
            host_blocks=min((host.num_blocks for host in hosts), default=0),
            host_leases=self._plans.leases(HOST_BLOCKS),
            forks=not self.model.keeps_states,  # states behind the prompt are nobody else's
            copies=all(map(copies_blocks, plans)),
            room=min((each.room for each in rooms), default=Room()),
            page_leases=self._plans.leases(PAGES),
            apart=max(map(handed_on_after, plans)),
            policies=policies,
            totals=self.totals,
            inbox=self.inbox(self.limits.max_queue),
            witness=self.witness,
        )

    @property
    def caches(self) -> list[object]:
        """What has a part for each KV block: the target's cache, a drafter's."""
        return [self._states[state.name] for state in self._lasting if state.keys == BLOCKS]

    def _kept(self) -> tuple[int, int]:
        """Of all caches of all ranks: how many tokens after a block its contents depend on, and how
        many are looked back at; 0: any number. A stage of a model has some of the caches only, but
        every rank has to reuse and free the same blocks.
        """
        tails = [getattr(cache, "tail", 0) for cache in self.caches] or [0]
        windows = [getattr(cache, "lookback", None) or 0 for cache in self.caches] or [0]
        if (group := self._found.get(GROUP)) is not None:
            tails = group.gathered(max(tails))
            windows = group.gathered(max(windows) if all(windows) else 0)
        return max(tails), max(windows) if all(windows) else 0

    def reset(self) -> None:
        """Make what lasts from run to run new; a table of before belongs to what it held."""
        self._states = {state.name: self._made(state) for state in self._lasting}
        # Runs begin on other threads, whose streams know nothing of this one's.
        backend_of(self.model.device).synchronize(self.model.device)

    @property
    def _lasting(self) -> list[State]:
        return [state for state in self._plans.states.values() if not state.per_run]

    def _made(self, state: State) -> object:
        if state.make is None:
            raise EngineError(
                f"the state {state.name!r} does not say how it is made: declare it with `make`"
            )
        return state.make()

    def run(self, table: RequestTable, *, trace: bool | Recorder = False) -> RunReport:
        """Serve what is submitted to `table`, now or meanwhile, until all have ended.

        Rows and blocks are back in their pools afterwards. Where an op fails, the requests of its
        step's batch end with an error that names node, op and step, and a new run goes on with the
        others from what is settled; the report is that of the last run. `trace` is that of
        `executors.run`. Raises `StuckWait`, `UndeclaredAccess`, and what is wrong with the plan;
        the requests then keep what was settled. `table.leave` ends it before.
        """
        threads = torch.get_num_threads()
        self._began = started = perf_counter()
        try:
            if self.torch_threads is not None:
                torch.set_num_threads(self.torch_threads)
            report = self._serve(table, trace)
        finally:
            torch.set_num_threads(threads)
            self._began = None
            self.totals.seconds += perf_counter() - started
        table.check_conservation()
        return report

    @property
    def seconds(self) -> float:
        """How long runs have been on so far, with the one that is on now."""
        began = self._began
        return self.totals.seconds + (0.0 if began is None else perf_counter() - began)

    @property
    def captures(self) -> Captures | None:
        """The captured segments, and what became of their steps."""
        return getattr(self.runner(), "captures", None)

    def _learning(self) -> int:
        captures = self.captures
        return 0 if captures is None else captures.learning

    def notes(self) -> list[str]:
        """What is not as somebody might think: merged or skipped weights, steps not replayed."""
        made = dict.fromkeys(note for each in self._found.made() for note in _notes(each))
        captured = [] if self.captures is None else self.captures.notes()
        return [*made, *captured]

    def resource(self, resource: Resource[T]) -> T | None:
        """What the graph was built with; None for what it does not need."""
        return self._found.get(resource)

    def runner(self) -> Executor:
        """What runs the plan where the model lies: of a name, one for all runs, as it has graphs.

        Raises `StepweaveError` for an unknown name.
        """
        if not isinstance(self.executor, str):
            return self.executor
        graphs = self.graphs and self.check == "off"
        if self._by_name is None or self._by_name[0] != (self.executor, graphs):
            self._by_name = (
                (self.executor, graphs),
                executor_on(
                    self.model.device,
                    self.executor,
                    ranges=self.nvtx,
                    graphs=graphs,
                    pieces=self.pieces,
                ),
            )
        return self._by_name[1]

    def _failing(self, failure: NodeFailure) -> None:
        """Others may be waited for that will not come now: whoever knows them hears of it."""
        if self.witness is not None:
            self.witness.failing(failure.step, _said(failure))

    def _course(self, table: RequestTable) -> Course | None:
        """Between which plans the next run may go, from the one that the last was at."""
        if not self.others:
            return None

        def load() -> Load:
            totals = self.totals
            return Load(len(table.request_slots.held), totals.windows, totals.accepted)

        return self._plans.course(self._at, self.steer, load, self._turn)

    def _turn(self, turned: Turned) -> None:
        self._at = turned.after
        self.turned.append(turned)
        self.totals.switch(turned.before, turned.after, turned.reason)

    @property
    def plans(self) -> Mapping[str, Plan]:
        """All of its plans by name, the one that it began with first."""
        return self._plans.by_name

    @property
    def at(self) -> str:
        """The name of the plan that runs the steps to come."""
        return self._at

    def begin_with(self, plan: str) -> None:
        """Between runs: the name of the plan with which the next one begins."""
        self._at = plan

    def _refuse_other_devices(self) -> None:
        device = self.model.device
        streams = streams_behind(self.executor) if isinstance(self.executor, str) else None
        if streams is not None and streams is not backend_of(device):
            raise EngineError(
                f"executor {streams.name!r} runs on the streams of a device {streams.name!r}, but "
                f"the model is on {f'{device}'!r}; load it with device={streams.name!r}, or use "
                "executor 'threads'"
            )

    def _serve(self, table: RequestTable, trace: bool | Recorder) -> RunReport:
        """Run the plan, again after each failure, until nobody is left."""
        futile, finished, before = 0, table.finished, _settled(table)
        runner = self.runner()
        while True:
            self._found.bring(TABLE, table)
            of_run = [each for each in self._plans.states.values() if each.per_run]
            states = {**self._states, **{each.name: self._made(each) for each in of_run}}
            steps = table.steps
            try:
                course = self._course(table)
                return run(
                    self.plan if course is None else course.plan,
                    executor=Strict(runner) if self.check == "strict" else runner,
                    states=states,
                    trace=trace,
                    watchdog_s=self.watchdog_s,
                    course=course,
                    on_failure=self._failing,
                )
            except NodeFailure as failure:
                if not _ends_its_step_only(failure):
                    raise
                step, error = failure.step, _said(failure)
                if LOG.hasHandlers():  # nobody is shown tracebacks who has not asked for a log
                    LOG.error(error, exc_info=failure.__cause__)
            except StepweaveError:
                raise
            except Exception as failure:  # no op: such as memory that cannot be allocated
                begun = table.steps > steps
                what = "the run ended between its ops" if begun else "no step could begin"
                step, error = None, f"{what}: {shortly(failure)}"
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
            if table.over:
                return RunReport(steps=0)


def _notes(resource: object) -> Sequence[str]:
    """What a resource, such as a model, says that somebody might not think."""
    found = getattr(resource, "notes", ())
    return found if isinstance(found, tuple | list) else ()


def _settled(table: RequestTable) -> dict[int, int]:
    """Tokens of each request that has not ended."""
    return {uid: len(request.output_ids) for uid, request in table.requests.items()}


def _ends_its_step_only(failure: NodeFailure) -> bool:
    """Whether the engine may go on: not where the graph itself is wrong, or somebody gave up."""
    cause = failure.__cause__
    if left_behind(failure):
        return False
    declared = UndeclaredAccess | GraphError | PolicyError  # faults that a retry would repeat
    return isinstance(cause, Exception) and not isinstance(cause, declared)


def _said(failure: NodeFailure) -> str:
    assert failure.__cause__ is not None, "a node failure has a cause"
    return (
        f"node {failure.node!r}: op {failure.op!r} failed in step {failure.step}: "
        f"{shortly(failure.__cause__)}{raised_at(failure.__cause__)}"
    )
