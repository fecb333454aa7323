"""A plan as one small program per actor, and the interpreter of one op of it.

    for each iteration t, for each (op, offset) of the actor, as step = t - offset:
        wait    for each awaited op, until it has completed the step that the distance says
        run     if the step is in range; else it is skipped
        launch  hand the device ops that this op launches to their stream
        record  tell each waiter that this op has completed the step

Every order that the proof of a plan uses is a path through instances of ops, and such a path may
pass through steps before the first (u of step 0, v of step -1, w of step 0) and after the last.
So all actors run all their iterations from `first` until `tail` after the last step, and ops of
steps out of range skip their run but keep their waits, launches and records. How far out that is:
a path that proves an order is a shortest one, so from its start at a step ≥ 0 it never falls by
more than P = -(the least distance of any path), and from its end at a step ≤ last it never was
more than P above. With instances of steps -P … last + P every such path holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

from ..graph.plan import Plan, Wait
from ..graph.planner.events import padding, plan_edges
from .context import Context, Memory
from .errors import NodeFailure
from .frontier import Frontier

Perform = Callable[[int], None]  # one op, for one step


class Task(NamedTuple):
    """All instructions of one op: wait, run, launch, record."""

    op: str
    offset: int
    waits: tuple[Wait, ...]
    launches: tuple[str, ...]
    stream: str | None  # of the launched ops
    recorded: bool

    def __str__(self) -> str:
        at = f" at t{-self.offset:+d}" if self.offset else ""
        lines = [f"wait   {wait.source}@{-wait.distance:+d}" for wait in self.waits]
        lines.append(f"run    {self.op}{at}")
        lines += [f"launch {op} on {self.stream}" for op in self.launches]
        lines += [f"record {self.op}"] * self.recorded
        return "\n".join(lines)


@dataclass(frozen=True)
class Program:
    """The tasks of each actor, and the iterations to run them for."""

    actors: Mapping[str, tuple[Task, ...]]
    streams: frozenset[str]
    padding: int
    first: int  # the iteration with which every actor begins
    tail: int  # iterations after the last step

    @staticmethod
    def of(plan: Plan) -> Program:
        vertices = plan.graph.vertices
        launched: dict[str, list[str]] = {}
        for vertex in vertices.values():
            if vertex.launch is not None:
                launched.setdefault(vertex.launch, []).append(vertex.name)
        placed = {op: offset for ops in plan.actors.values() for op, offset in ops}
        waits: dict[str, list[Wait]] = {}
        for wait in dict.fromkeys(plan.waits):
            waits.setdefault(wait.target, []).append(wait)
        recorded = plan.records

        def task(op: str) -> Task:
            # A device op's step is that of its launch, whatever iteration the stream calls it.
            device_ops = tuple(launched.get(op, ()))
            return Task(
                op=op,
                offset=placed[vertices[op].launch or op],
                waits=tuple(waits.get(op, ())),
                launches=device_ops,
                stream=vertices[op].node.stream if device_ops else None,
                recorded=op in recorded,
            )

        actors = {actor: tuple(task(op) for op, _ in ops) for actor, ops in plan.actors.items()}
        offsets = [task.offset for tasks in actors.values() for task in tasks] or [0]
        reach = padding(plan_edges(plan))
        return Program(
            actors=actors,
            streams=frozenset(v.actor for v in vertices.values() if v.side == "device"),
            padding=reach,
            first=min(offsets) - reach,
            # One at least: an actor may have come to the step after the last, and wait for
            # another's op of it, when a stop makes the step before it the last.
            tail=max(offsets) + max(reach, 1),
        )

    @cached_property
    def tasks(self) -> dict[str, Task]:
        return {task.op: task for tasks in self.actors.values() for task in tasks}

    @cached_property
    def hosts(self) -> dict[str, tuple[Task, ...]]:
        """The programs of host threads; streams run what these launch."""
        return {actor: ts for actor, ts in self.actors.items() if actor not in self.streams}

    @cached_property
    def actor_of(self) -> dict[str, str]:
        return {task.op: actor for actor, tasks in self.actors.items() for task in tasks}

    @cached_property
    def ranks(self) -> dict[str, int]:
        """The place of each op in its actor's program."""
        return {task.op: rank for ts in self.actors.values() for rank, task in enumerate(ts)}

    def __str__(self) -> str:
        return "\n".join(
            f"{actor}\n  " + "\n".join(map(str, tasks)).replace("\n", "\n  ")
            for actor, tasks in self.actors.items()
        )


class ActorStatus:
    """Which op an actor is at and what it waits for, for whoever asks why nothing moves."""

    __slots__ = ("at", "ended", "wait")

    def __init__(self) -> None:
        self.at: Context | None = None  # None: idle
        self.wait: Wait | None = None
        self.ended = False

    def failure(self, cause: BaseException) -> NodeFailure:
        """What came out of the op that the actor is at, as the failure of its node."""
        assert self.at is not None, "only an op can fail"
        vertex = self.at.vertex
        return NodeFailure(vertex.node.name, vertex.name, self.at.step, cause)


def interpret(
    context: Context,
    memory: Memory,
    frontier: Frontier,
    status: ActorStatus,
    *,
    run: Callable[[Context], None] | None,
    waits: Sequence[tuple[Wait, Callable[[], Any]]] = (),
    launch: Callable[[int], None] | None = None,
    records: Sequence[Callable[[None], None]] = (),
    failed: Callable[[BaseException], None] | None = None,
) -> Perform:
    """The interpreter of one op: a function of the step, with all look-ups done beforehand.

    `failed` is told of an error where the actor is to go on, and is idle after each op; else the
    error is raised.
    """
    unwritten = memory.unwritten(context.vertex)
    keepers = memory.keepers(context.vertex)
    releases = memory.releases(context.vertex)
    first = frontier.first

    def perform(step: int) -> None:
        context.step = step
        status.at = context
        try:
            if waits:
                since = perf_counter()
                for wait, done in waits:
                    status.wait = wait
                    done()
                status.wait = None
                context.waited_s = perf_counter() - since
            if first <= step <= frontier.begun or frontier.admit(step):
                if run is not None:
                    run(context)
                for cells, size, written in unwritten:
                    slot = step % size
                    if written[slot] != step:
                        cells[slot] = None
                for keep, cells in keepers:
                    keep(cells[step % len(cells)])
                for cells, size, carry, counts, readers in releases:
                    version = step - carry
                    if version >= first:
                        slot = version % size
                        if counts is None or next(counts[slot]) % readers == readers - 1:
                            cells[slot] = None
            if launch is not None:
                launch(step)
            for record in records:
                record(None)
        except BaseException as cause:
            if failed is None:
                raise
            failed(cause)
        if failed is not None:
            status.at = None

    return perform
