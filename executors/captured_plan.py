"""What is captured of one plan: what each device op of it runs in place of its body."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..backends.streams import Moment, Recording, Stream
from ..graph.plan import Plan
from ..graph.planner.segments import Segment, in_order, segments
from .captured_segment import Run, SegmentRun
from .context import Memory
from .counts import Counts
from .pieces import OpPieces
from .terms import Terms

Order = Sequence[tuple[str, int]]


class CapturedPlan:
    """Its segments and pieces, and the buffers of its slots, which lie where they lay whenever it
    is run."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        terms: Terms,
        counts: dict[Segment, Counts],
        pieces: dict[str, Counts],
        order: Order | None,
    ) -> None:
        """`number`: of the plan among those of the terms. Plans that have a segment or an op in
        common count its steps in common."""
        self.plan = plan
        self.buffers: dict[str, list[Any]] = {}
        self._where = terms.where
        # Firings of one node fill slots in turn, which signatures do not know: they run as usual.
        self.segments: tuple[Segment, ...] = ()
        if plan.graph.declared is None:
            self.segments = segments(plan) if order is None else in_order(plan, order)
        self.runs = {
            each: SegmentRun(number, plan, each, terms, counts.setdefault(each, Counts()))
            for each in self.segments
        }
        self.pieces = {
            op: OpPieces((number, op), each.stream, terms, pieces.setdefault(op, Counts()))
            for each in (self.segments if terms.largest else ())
            for op in each.ops
        }

    def begin(self, memory: Memory, streams: Mapping[str, Stream]) -> Mapping[str, Run]:
        """For a new leg of a run: what each device op runs in place of its body."""
        self.buffers = {
            name: cells.buffers for name, cells in memory.cells.items() if cells.buffers
        }
        for buffers in self.buffers.values():
            self._where.stay(buffers)
        wrapped: dict[str, Run] = {}
        for segment, run in self.runs.items():
            stream = streams[segment.stream]
            same_states = run.begin(memory, stream)
            for op in segment.ops if self.pieces else ():
                memory.contexts[op].pieces = self.pieces[op]
                self.pieces[op].begin(stream, same_states=same_states)
            wrapped |= {op: run.of(op) for op in segment.ops}
        return wrapped

    def interrupt(self, segment: Segment, steps: Collection[int]) -> None:
        """In these steps something of another plan comes between the ops of a segment."""
        self.runs[segment].interrupted.update(steps)

    def recordings(self, segment: Segment) -> Sequence[Recording]:
        """What is captured of a segment; nothing of one that this plan does not have."""
        run = self.runs.get(segment)
        return () if run is None else run.recordings()

    def replayed(self) -> frozenset[int]:
        """Of the run that is on, or was last: steps of which all segments were replayed."""
        runs = [frozenset(run.replayed) for run in self.runs.values()]
        return frozenset.intersection(*runs) if runs else frozenset()

    def forget_steps(self) -> None:
        """Those of another run."""
        for run in self.runs.values():
            run.replayed.clear()

    def stamps(self, op: str, stream: Stream) -> Callable[[], Moment]:
        """When `stream`, which runs `op`, comes to here: to be called where that is launched."""
        run = next((run for segment, run in self.runs.items() if op in segment.ops), None)
        return stream.stamp if run is None else run.stamp

    def leave(self, op: str, stream: Stream) -> None:
        """Of a run that was ended: nothing follows what was launched of the segment of `op`."""
        for segment, run in self.runs.items():
            if op == segment.ops[0]:
                stream.run(run.leave, -1, "end of captures")

    def end(self) -> None:
        """After a leg of a run: let go of what its last steps worked on."""
        for run in self.runs.values():
            run.end()
