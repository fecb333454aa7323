"""How long data of a device op must be kept: until the host knows that the op is done.

A kernel reads memory long after the call that launched it has returned. An allocator that hands out
freed memory by the order of one stream, as caching allocators do, would let another stream
overwrite it. So what a device op reads or writes is held, and the plan says until when: some host
op h of step i + d comes after the device op of step i, since plans are bounded. When that begins,
what the op touched in step i may go, whatever the allocator. Nothing is asked of the device for it:
no event is recorded and nobody waits, so holding data adds no order to the plan's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..graph.answers.orderings import Orderings
from ..graph.errors import StepweaveError
from ..graph.plan import Plan
from ..graph.step_graph import Vertex
from .context import Cells, Incomplete

Retained = deque[tuple[int, tuple[Any, ...]]]  # (step, what the op touched then), oldest first


def release_points(plan: Plan) -> dict[str, tuple[str, int] | None]:
    """For each device op u the host op h and the least d ≥ 0 with u(i) before h(i + d).

    Of several with the same d the first in listing order; None where no host op follows, which
    the verifier refuses.
    """
    orders, vertices = Orderings(plan.always), plan.graph.vertices
    hosts = [name for name, vertex in vertices.items() if vertex.side == "host"]
    found: dict[str, tuple[str, int] | None] = {}
    for op, vertex in vertices.items():
        if vertex.side != "device":
            continue
        near = [
            (max(0, apart), place, host)
            for place, host in enumerate(hosts)
            if (apart := orders.distance(op, host)) is not None
        ]
        found[op] = (min(near)[2], min(near)[0]) if near else None
    return found


def copy_point(plan: Plan, op: str, first: str, slots: int) -> tuple[str, int] | None:
    """The host op h and the d with `op`(i) before h(i + d), and that before `first`(i + slots).

    What `op` fills in step i is complete there, and not filled again yet: its work is done with
    that of `first`, by a replay, or `first` is the op itself. Of several the one with the least d,
    and then the first in listing order; None where the plan has none.
    """
    orders, vertices = Orderings(plan.always), plan.graph.vertices
    between = [
        (max(0, after), place, host)
        for place, (host, vertex) in enumerate(vertices.items())
        if vertex.side == "host"
        and (after := orders.distance(op, host)) is not None
        and (before := orders.distance(host, first)) is not None
        and max(0, after) + max(0, before) <= slots  # so the step of h is one of the run, too
    ]
    return (min(between)[2], min(between)[0]) if between else None


class Holds:
    """What the device ops of one run still use."""

    def __init__(self, plan: Plan, cells: Mapping[str, Cells]) -> None:
        self._cells = cells
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
    them again. A host op that the plan has between the two copies them when it begins. So that op
    takes longer, and no order is added.
    """

    def __init__(self, plan: Plan, op: str, first: str, incomplete: Incomplete) -> None:
        """Raises `StepweaveError` where the plan has no host op between the two."""
        point = copy_point(plan, op, first, incomplete.slots)
        if point is None:
            names = ", ".join(map(repr, incomplete.values))
            raise StepweaveError(
                f"keep: {names} cannot be kept, since {op!r} fills buffers of the host on its "
                "stream, and no host op comes after that and before they are filled again. Let a "
                "host node read what is to be kept, or fill buffers on the device."
            )
        self.host, self._distance = point
        self._incomplete = incomplete
        self._filled: deque[int] = deque()  # steps whose versions are not copied yet

    def filled(self, step: int) -> None:
        """To be called when the op is launched."""
        if step >= 0:
            self._filled.append(step)

    def copy(self, step: int) -> None:
        """To be called when the host op begins this step, after its waits."""
        while self._filled and self._filled[0] <= step - self._distance:
            self._copy_oldest()

    def finish(self) -> None:
        """To be called when the streams have done all their work."""
        while self._filled:
            self._copy_oldest()

    def _copy_oldest(self) -> None:
        self._filled.popleft()
        self._incomplete.copy_step()


def _release(held: Retained, distance: int) -> Callable[[int], None]:
    def release(step: int) -> None:
        while held and held[0][0] <= step - distance:
            held.popleft()

    return release
