"""How long data of a device op must be kept: until the host knows that the op is done.

A kernel reads memory long after the call that launched it has returned. An allocator that hands out
freed memory by the order of one stream, as caching allocators do, would let another stream
overwrite it. So what a device op reads or writes is held, and the plan says until when: if some
host op h of step i + d comes after the device op of step i, on any path of the proof, then
what the op touched in step i may go when h of step i + d begins, whatever the allocator. That
costs no event and no question to the device. Where no host op comes after it, nothing of the plan
can tell: then an event is recorded for the purpose and waited for, far behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backends.streams import Event, Stream
from ..graph.plan import Plan
from ..graph.planner.events import plan_edges
from ..graph.planner.paths import HOP, adjacency, closure, reachable
from ..graph.step_graph import Vertex
from .context import Cells, Incomplete

Retained = deque[tuple[int, tuple[Any, ...]]]  # (step, what the op touched then), oldest first


def release_points(plan: Plan) -> dict[str, tuple[str, int] | None]:
    """For each device op u the host op h and the least d ≥ 0 with u(i) before h(i + d).

    Of several with the same d the first in listing order; None where no host op follows.
    """
    vertices = plan.graph.vertices
    index = {name: number for number, name in enumerate(vertices)}
    paths = closure(
        adjacency(len(index), [(index[u], index[v], d) for u, v, d, _ in plan_edges(plan)])
    )
    hosts = [name for name, vertex in vertices.items() if vertex.side == "host"]
    found: dict[str, tuple[str, int] | None] = {}
    for op, vertex in vertices.items():
        if vertex.side != "device":
            continue
        near = [
            (max(0, int(paths[index[op], index[host]]) // HOP), place, host)
            for place, host in enumerate(hosts)
            if reachable(paths[index[op], index[host]])
        ]
        found[op] = (min(near)[2], min(near)[0]) if near else None
    return found


class Holds:
    """What the device ops of one run still use."""

    def __init__(self, plan: Plan, cells: Mapping[str, Cells], ahead: int) -> None:
        self._cells = cells
        self._ahead = ahead
        self._points = release_points(plan)
        self._held: dict[str, Retained] = {op: deque() for op in self._points}

    def keep(self, vertex: Vertex) -> Callable[[int], None]:
        """To be called with the step, once the op's body has run."""
        held = self._held[vertex.name]
        append = held.append
        reads = [
            (cells.cells, len(cells.cells), read.carry)
            for read in vertex.op.reads
            if (cells := self._cells.get(read.name)) is not None and not cells.value.external
        ]
        writes = [
            (cells.cells, len(cells.cells), 0)
            for name in vertex.op.writes
            if (cells := self._cells.get(name)) is not None
        ]
        touched = (*reads, *writes)

        def keep(step: int) -> None:
            append((step, tuple(cells[(step - carry) % size] for cells, size, carry in touched)))

        return keep

    def asks(self, op: str, stream: Stream) -> Callable[[int], None] | None:
        """To be called with the step after the op's launch, where no host op follows it."""
        if self._points[op] is not None:
            return None
        asked: deque[tuple[int, Event]] = deque()
        release = _release(self._held[op], 0)

        def ask(step: int) -> None:
            asked.append((step, stream.record()))
            if len(asked) > self._ahead:
                earlier, event = asked.popleft()
                event.synchronize()
                release(earlier)

        return ask

    def releases(self, host_op: str) -> Sequence[Callable[[int], None]]:
        """To be called with the step when the host op begins it, after its waits."""
        return [
            _release(self._held[op], point[1])
            for op, point in self._points.items()
            if point is not None and point[0] == host_op
        ]


class Copies:
    """The versions of one device op that the run hands out, copied once they are complete.

    Its body has returned, but its stream may still be filling the buffers; and in K steps it fills
    them again. So before the launch that does that, the host waits for the earlier one. That is no
    order of the plan: whoever asks for such versions pays for them.
    """

    def __init__(self, incomplete: Incomplete) -> None:
        self._incomplete = incomplete
        self._filling: deque[tuple[int, Event]] = deque()

    def before(self, step: int) -> None:
        """To be called before the op's launch."""
        while self._filling and self._filling[0][0] <= step - self._incomplete.slots:
            self._copy_oldest()

    def after(self, step: int, stream: Stream) -> None:
        """To be called after the op's launch."""
        if step >= 0:
            self._filling.append((step, stream.record()))

    def finish(self) -> None:
        """To be called after the last step."""
        while self._filling:
            self._copy_oldest()

    def _copy_oldest(self) -> None:
        _, event = self._filling.popleft()
        event.synchronize()
        self._incomplete.copy_step()


def _release(held: Retained, distance: int) -> Callable[[int], None]:
    def release(step: int) -> None:
        while held and held[0][0] <= step - distance:
            held.popleft()

    return release
