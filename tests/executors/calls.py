"""An oracle for what an executor asks of a device: which accesses do its calls order?

It knows CUDA's rules and nothing of plans: a stream works in order, work comes after the host call
that enqueued it and after the events that its stream was told to wait for; a host op comes after
what its thread did before, and after the events that the thread waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import networkx as nx

from stepweave.executors import leg
from stepweave.executors.context import Context
from stepweave.executors.errors import NodeFailure
from stepweave.executors.instructions import interpret
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.node import OpContext, Run
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.verifier.firings import needs_of
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.histories import recorded_states, recording, with_graph
from stepweave.testing.unverified import run_unverified


class Journal:
    """Happens-before, as the calls of one run make it. Vertices are ops of steps, and calls."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.order = nx.DiGraph()
        self._lock = threading.Lock()
        self._host: dict[str, object] = {}  # thread -> the last thing it did
        self._stream: dict[str, list[object]] = {}  # stream -> what its next work comes after

    def come_after(self, what: object, earlier: Iterable[object]) -> None:
        self.order.add_node(what)
        for before in earlier:
            self.order.add_edge(before, what)

    def on_host(self, thread: str, what: object, *more: object) -> None:
        with self._lock:
            self.come_after(what, [*filter(None, [self._host.get(thread)]), *more])
            self._host[thread] = what

    def enqueue(self, thread: str, stream: str, what: object, *more: object) -> None:
        with self._lock:
            before = self._stream.get(stream, [])
            self.come_after(what, [*before, *filter(None, [self._host.get(thread)]), *more])
            self._stream[stream] = [what]

    def last(self, stream: str) -> object | None:
        return (self._stream.get(stream) or [None])[0]


def broken(plan: Plan, steps: int = 6) -> list[str]:
    """Run the plan on recorded streams: the required orders that the calls do not make."""
    journal = Journal(plan)
    vertices = plan.graph.vertices
    marks = iter(range(1 << 30))

    def around(op: str, work: Run) -> Run:
        def noted(ctx: OpContext) -> None:
            if vertices[op].side == "device":
                journal.enqueue(_thread(), vertices[op].actor, (op, ctx.step))
            work(ctx)

        return noted

    def noting(context: Context, *args: Any, waits: Any = (), **more: Any) -> Any:
        """A host op is there when its waits are over, in a step that is skipped too."""
        op = context.vertex.name

        def note_host() -> None:
            handed = [
                (wait.source, context.step - wait.distance)
                for wait in plan.waits
                if wait.target == op and vertices[wait.source].side == "host"
            ]  # between host threads no call of the device orders anything
            journal.on_host(vertices[op].actor, (op, context.step), *handed)

        if context.vertex.side == "host":
            waits = [*waits, (Wait(op, op, 0), note_host)]
        return interpret(context, *args, waits=waits, **more)

    device = RecordedCalls()
    note = device.note

    def record(kind: str, stream: str | None, work: str | None, of: str) -> None:
        if kind == "run" and stream is not None:  # of a skipped step this is all there is
            journal.enqueue(_thread(), stream, ("run", next(marks)))
        elif kind == "wait" and stream is not None:
            journal.enqueue(_thread(), stream, ("wait", next(marks)), *known(work, of))
        elif kind == "synchronize":
            journal.on_host(_thread(), ("woken", next(marks)), *known(work, of))
        elif kind == "record":
            last = journal.last(of)
            seen[work, of] = [] if last is None else [last]
        note(kind, stream, work, of)  # type: ignore[arg-type]

    seen: dict[tuple[str | None, str], list[object]] = {}

    def known(work: str | None, of: str) -> list[object]:
        """What an event says is done: nothing, if another thread launched before its record."""
        return seen.get((work, of), [])

    device.note = record  # type: ignore[method-assign]
    graph = recording(plan.graph, around)
    try:
        with patch.object(leg, "interpret", noting):
            states = recorded_states(graph)
            run_unverified(with_graph(plan, graph), device, RunArguments(steps, states))
    except NodeFailure as failure:
        if not isinstance(failure.__cause__, AssertionError):
            raise
        return [str(failure.__cause__)]  # launched before what it waits for
    after = {what: nx.descendants(journal.order, what) for what in list(journal.order)}
    return [
        f"{need.hazard} {need.value}: {need.before}@{step} → {need.after}@{step + need.distance}"
        for need in needs_of(plan)
        for step in range(steps)
        if 0 <= step + need.distance < steps
        and (need.before, step) != (need.after, step + need.distance)
        and (need.after, step + need.distance) not in after.get((need.before, step), set())
    ]


def _thread() -> str:
    return threading.current_thread().name.removeprefix("stepweave-")
