"""Captured segments: recorded once per shape, replayed by one call, never in place of another.

What a captured graph does is fixed: the addresses, shapes and numbers that its bodies saw. So a
capture is kept under all of that, the *signature* of what the segment reads, of its states and of
the buffers that it fills: tensors by address and shape, everything else by type, content and bits
(`contents.py`), and the step modulo the slots of what it touches. A step is replayed only if its
signature is one that was captured; any other runs as usual. A graph can be missing, but not wrong.

So nothing is captured whose signature would not tell all: what reads a tensor's numbers on the
host, what changes a datum that is no tensor, what holds something that cannot be compared.

Signatures return because device values lie in static slots. What a graph makes and somebody reads
outside its segment is copied, by the graph, to where its slot lies; so is every version of a
carried value (it has an initial version, and so one shape for ever), whether a graph made it or
not. Slots lie outside the memory in which graphs work, so that all graphs of a stream can work in
the same memory: what one leaves there, nobody reads any more. Whether the host's numbers return is
up to the nodes, which may round sizes up.

A signature runs as usual when it first comes up, which warms kernels up; it is captured when it
comes up again, and replayed from then on. Where a capture costs as much as several steps
(`executors/threads.py`), it has to come up more often first. What cannot be captured, or has
nothing to do, runs as usual, and `notes` says so. A step had nothing to do if it published nothing
and, of an op that only changes a state, if no operation changed a tensor when its signature first
came up (`changes.py`).

A capture that fails has done nothing, and what is left of its pool is used no more: its step runs
as usual, and later ones are captured in another. One that a run leaves open, since the run was
ended between two ops, is ended in the stream's order. What is stamped within one is stamped when
it is over, as nothing is done before.

On a CPU operations are noted while they are done (`backends/tape/`), so what cannot be recorded
goes on, and the step is not done again. Where they are too many, the oldest are given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backends.streams import Moment, Recording, Stream
from ..graph.plan import Plan
from ..graph.planner.segments import Segment, in_order, segments
from .captured_segment import Counts, Run, SegmentRun
from .context import Memory
from .pieces import OpPieces
from .places import Places
from .pools import Pools


class Captures:
    """The captured segments of one plan, from run to run: as long as its buffers and states."""

    def __init__(
        self,
        plan: Plan,
        *,
        noted: bool = True,
        usual: int = 1,
        largest: int = 0,
        order: Sequence[tuple[str, int]] | None = None,
    ) -> None:
        """`noted`: whether it is worth a note that a step was not replayed. `usual`: so many steps
        of a signature run as usual before one is captured. `largest`: tokens of the largest step
        that ops may have recorded in pieces. `order`: of the ops of an iteration, where one thread
        runs all of them, and nothing of the plan's actors and waits counts.
        """
        self.plan, self._noted = plan, noted
        self.buffers: dict[str, list[Any]] = {}  # of the slots: they must lie where they lay
        self.where = Places()
        self.pools = Pools()
        # Firings of one node fill slots in turn, which signatures do not know: they run as usual.
        self.segments: tuple[Segment, ...] = ()
        if plan.graph.declared is None:
            self.segments = segments(plan) if order is None else in_order(plan, order)
        self.counts = {segment: Counts() for segment in self.segments}
        self._runs = {
            segment: SegmentRun(plan, segment, self.where, self.pools, self.counts[segment], usual)
            for segment in self.segments
        }
        self.pieces = {
            op: OpPieces(op, segment.stream, self.where, self.pools, largest, usual)
            for segment in (self.segments if largest else ())
            for op in segment.ops
        }

    def begin(self, memory: Memory, streams: Mapping[str, Stream]) -> Mapping[str, Run]:
        """For a new run: what each device op runs in place of its body."""
        self.buffers = {
            name: cells.buffers for name, cells in memory.cells.items() if cells.buffers
        }
        for buffers in self.buffers.values():
            self.where.stay(buffers)
        wrapped: dict[str, Run] = {}
        for segment, run in self._runs.items():
            run.begin(memory, streams[segment.stream])
            wrapped |= {op: run.of(op) for op in segment.ops}
        for op, pieces in self.pieces.items():
            memory.contexts[op].pieces = pieces
            pieces.stream = streams[pieces.stream_name]
        return wrapped

    def recordings(self) -> Mapping[Segment, Sequence[Recording]]:
        """What is captured of each segment now."""
        return {segment: run.recordings() for segment, run in self._runs.items()}

    def replayed(self) -> frozenset[int]:
        """Of the run that is on, or was last: steps of which all segments were replayed.

        Of the last thousands of them. Empty where there are no segments.
        """
        runs = [frozenset(run.replayed) for run in self._runs.values()]
        return frozenset.intersection(*runs) if runs else frozenset()

    def stamps(self, op: str, stream: Stream) -> Callable[[], Moment]:
        """When `stream`, which runs `op`, comes to here: to be called where that is launched."""
        run = next((run for segment, run in self._runs.items() if op in segment.ops), None)
        return stream.stamp if run is None else run.stamp

    def leave(self, op: str, stream: Stream) -> None:
        """Of a run that was ended: nothing follows what was launched of the segment of `op`."""
        for segment, run in self._runs.items():
            if op == segment.ops[0]:
                stream.run(run.leave, -1, "end of captures")

    def end(self) -> None:
        """After a run: let go of what its last steps worked on."""
        for run in self._runs.values():
            run.end()

    def notes(self) -> list[str]:
        """What ran as usual, and why; one line for each segment."""
        lines = []
        for segment, counts in self.counts.items():
            eager = sum(counts.eager.values())
            if eager and self._noted:
                total = counts.replayed + counts.captured + eager
                reasons = ", ".join(f"{why}: {n}" for why, n in sorted(counts.eager.items()))
                lines.append(f"{segment}: {eager} of {total} steps not replayed ({reasons})")
        for op, pieces in self.pieces.items():
            runs = pieces.captured + pieces.replayed + sum(pieces.refused.values())
            if runs and self._noted:
                told = "".join(f"; {why}: {n}" for why, n in sorted(pieces.refused.items()))
                lines.append(
                    f"{op.removesuffix('.device')}: {pieces.replayed} of {runs} steps with prompts "
                    f"replayed in pieces of {pieces.captured} sizes{told}"
                )
        return lines
