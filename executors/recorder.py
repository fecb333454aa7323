"""When the ops of a run began and ended: of all its steps, or of the last ones while it goes on.

An op costs two readings of the clock and an entry in a list of its own, which one thread at a time
adds to and any may copy. So a service can have one on for ever, and nobody who reads it holds the
run up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import perf_counter

from ..backends.streams import Moment
from ..graph.node import Node, Op
from ..graph.step_graph import Vertex
from .context import Context
from .course import Course
from .frontier import Frontier
from .homes import Homes
from .report import OpEvent


class Recorder:
    """Notes when each op ran, of one run after another; any thread may read it meanwhile.

    `steps`: of so many of the last steps; None: of all. A run that begins forgets the one before.
    """

    def __init__(self, steps: int | None = None) -> None:
        self.steps = steps
        self._run = RunTimes(steps)

    def begin(self, course: Course | None = None) -> RunTimes:
        """What the run that begins now notes its ops with; it may go over to plans of `course`."""
        self._run = RunTimes(self.steps, course)
        return self._run

    @property
    def latest(self) -> RunTimes:
        """The run that is on, or was last."""
        return self._run


class RunTimes:
    """The ops of one run. `origin`: when it began; all times are seconds of `perf_counter`."""

    def __init__(self, steps: int | None = None, course: Course | None = None) -> None:
        self.origin = perf_counter()
        self._steps = steps
        self._course = course
        # By op and actor, which differ from plan to plan.
        self._timed: dict[tuple[str, str], deque[tuple[int, float, float]]] = {}
        self._stamped: dict[tuple[str, str], deque[tuple[int, Moment, Moment]]] = {}
        self._launched: dict[str, deque[tuple[int, float]]] = {}

    @property
    def legs(self) -> tuple[tuple[int, str], ...]:
        """(step, plan): which plan runs the steps from which on; empty where there is only one."""
        return () if self._course is None else self._course.legs

    # -- before the run: what its ops do as well -------------------------------------------

    def timed(
        self, vertex: Vertex, run: Callable[[Context], None] | None
    ) -> Callable[[Context], None]:
        """This run of an op, which notes when it began and ended on the thread that calls it."""
        times = self._timed.setdefault((vertex.name, vertex.actor), deque(maxlen=self._steps))
        note = times.append

        def timed_run(context: Context) -> None:
            start = perf_counter()
            if run is not None:
                run(context)
            note((context.step, start, perf_counter()))

        return timed_run

    def stamped(
        self,
        vertex: Vertex,
        stamp: Callable[[], Moment],
        run: Callable[[Context], None] | None,
    ) -> Callable[[Context], None]:
        """This run of a device op, whose work its stream may do later: the stream has the times.

        `stamp`: when the stream comes to where it is called.
        """
        times = self._stamped.setdefault((vertex.name, vertex.actor), deque(maxlen=self._steps))
        note = times.append

        def stamped_run(context: Context) -> None:
            before = stamp()
            if run is not None:
                run(context)
            note((context.step, before, stamp()))

        return stamped_run

    def launching(self, op: str, launch: Callable[[int], None]) -> Callable[[int], None]:
        """The launches of a host op as part of that op: its end is theirs."""
        note = self._launched.setdefault(op, deque(maxlen=self._steps)).append

        def launch_and_note(step: int) -> None:
            launch(step)
            note((step, perf_counter()))

        return launch_and_note

    # -- at any time -----------------------------------------------------------------------

    def events(self) -> tuple[OpEvent, ...]:
        """What has ended by now, by start; times since the run began."""
        found, origin = [], self.origin
        for (op, actor), times in list(self._timed.items()):
            launched = dict(self._launched[op].copy()) if op in self._launched else {}
            found += [
                OpEvent(op, step, actor, start - origin, launched.get(step, end) - origin)
                for step, start, end in times.copy()
            ]
        for (op, actor), stamps in list(self._stamped.items()):
            for step, before, after in stamps.copy():
                end = after()
                start = None if end is None else before()
                if start is not None and end is not None:
                    found.append(OpEvent(op, step, actor, start - origin, end - origin))
        return tuple(sorted(found, key=lambda event: event.start_s))


def overhead_us() -> float:
    """What noting one op costs here, in µs: two readings of the clock, and an entry."""
    vertex = Vertex("op", Node("node"), Op(), "host", "driver", 0, 0, None)
    noted = RunTimes(steps=256).timed(vertex, None)
    context = Context(vertex, {}, {}, Frontier(1, tail=0), Homes())
    best = math.inf  # of some, since other programs may get in between
    for _ in range(5):
        start = perf_counter()
        for _ in range(400):
            noted(context)
        best = min(best, (perf_counter() - start) / 400)
    return best * 1e6
