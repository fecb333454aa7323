"""The ops of one captured segment, step by step: see `capture.py` for what is captured."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from ..backends.streams import CannotCapture, Moment, Recording, Stream
from ..graph.plan import Plan
from ..graph.planner.segments import Segment
from .capturing import capturing, may_pass, why_failed
from .changes import Changes
from .contents import Unstable, mapped, signature
from .context import Context, Memory
from .counts import FIRST, SELDOM, Counts
from .frontier import Aborted
from .moves import CannotMove, Moves, alike
from .places import place
from .terms import Terms

LIMIT = 512
"""Captures of one segment: a server that is asked for ever new shapes must not fill its memory
with graphs of each."""

OPERATIONS = 100_000
"""Operations in all recordings of one segment, where they consist of some: about 100 MB. What was
not replayed for longest is given up first."""

REMEMBERED = 4096
"""Signatures of one segment of which is known how often they came up, or why they are not captured.
The one that has not come up for longest is forgotten first; of each only a hash is kept, since a
wrong answer here would only leave a graph out, or capture one sooner."""

IDLE = "nothing to do"
"""Why a step whose ops publish nothing and change no state is not captured: a graph of it would be
empty."""

SWITCHED = "the run goes from plan to plan"
"""Why a step is not replayed where something of another plan comes between its ops."""

STEPS = 1 << 16
"""Replayed steps of a run that are remembered, the latest."""

Run = Callable[[Context], None]
V = TypeVar("V")


class _Later:
    """A moment that is not known before a capture is over."""

    moment: Moment | None = None

    def __call__(self) -> float | None:
        return None if self.moment is None else self.moment()


@dataclass(frozen=True)
class _Captured:
    """A graph, what its segment writes, and what must live as long as it does."""

    recording: Recording
    outputs: Mapping[str, Any]
    inputs: tuple[Any, ...]
    buffers: tuple[Any, ...]
    alike: Hashable  # as of `_alike`


class SegmentRun:
    """The ops of one segment in one step: all replayed, all captured, or all as usual."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        segment: Segment,
        terms: Terms,
        counts: Counts,
    ) -> None:
        graph = plan.graph
        self._number = number  # of the plan, of several whose slots lie in different places
        self._terms, self._where, self._pools = terms, terms.where, terms.pools
        self._segment, self._counts = segment, counts
        self._known: dict[Hashable, _Captured] = {}
        self._alike: dict[Hashable, Hashable] = {}  # a key of those that differ in places only
        self._met: dict[int, None] = {}  # hashes of keys, latest last: it has run in that place
        self._size = 0  # operations of those that are recorded as such
        self._seen: dict[
            int, int | str
        ] = {}  # hash, latest last -> times, or why it is not captured
        self._memory: Memory | None = None  # of the leg that is on
        self._states: tuple[object, ...] = ()
        # What they do is seen in no value.
        self._only_change = {op for op in segment.ops if graph.only_changes_states(op)}
        self._buffers: list[list[Any]] = []
        self._kept: dict[str, list[Any]] = {}  # histories of the values that the run returns
        self._reads = [
            (read.name, read.carry)
            for read in dict.fromkeys(
                read for op in segment.ops for read in graph.vertices[op].op.reads
            )
            if read.name in segment.reads
        ]
        self._on_device = {name for name in segment.writes if graph.values[name].place == "device"}
        touched = segment.reads | segment.writes
        self._slotted = {name for name in touched if plan.slots.get(name) is not None}
        self._phases = 1
        self._settled = self._on_device - segment.inner
        self._carried = {name for name in self._settled if graph.values[name].initial is not None}
        fresh = sorted(name for name in segment.writes if plan.slots.get(name) is None)
        self._never = f"{fresh[0]} is fresh in each step" if fresh else None
        self.interrupted: set[int] = set()  # steps whose ops cannot be handed over as one
        self.replayed: deque[int] = deque(maxlen=STEPS)  # steps of the run that is on, or was last
        # Of the step that is under way:
        self._replayed: _Captured | None = None
        self._first = False  # of its shape
        self._new = False  # it has not run in this place
        self._idle = True  # nothing has been published, and no state was changed
        self._key: Hashable = None
        self._shape: Hashable = None  # as of `alike`; equal for steps that differ in places only
        self._inputs: tuple[Any, ...] = ()
        self._capturing: tuple[Recording, ExitStack] | None = None
        self._outputs: dict[str, Any] = {}
        self._due: list[str] = []  # published, but not yet handed out
        self._done: list[tuple[Run, Context]] = []
        self._stamps: list[_Later] = []  # of the capture

    def begin(self, memory: Memory, stream: Stream) -> bool:
        """Forget what was captured on other states: a graph knows them by address.

        Returns whether the states are those of the leg before.
        """
        self.interrupted.clear()
        self._memory, self._cells, self._stream = memory, memory.cells, stream
        states = tuple(
            {
                name: memory.contexts[op].state(name)
                for op in self._segment.ops
                for name in sorted(self._segment.states & _touched(memory.contexts[op]))
            }.values()
        )
        inner = (self._segment.inner & self._on_device) - memory.held
        settled = self._on_device - (inner - memory.kept.keys())
        same = [id(state) for state in states] == [id(state) for state in self._states]
        if not same or settled != self._settled:
            while self._known:
                self._give_up()
            self._seen.clear()
            self._met.clear()
        self._states, self._settled = states, settled
        self._kept = {name: memory.kept[name] for name in self._settled & memory.kept.keys()}
        memory.kept_elsewhere.update(self._kept)
        self._phases = math.lcm(*(len(self._cells[name].cells) for name in self._slotted - inner))
        filled = (self._cells[name] for name in sorted(self._segment.writes))
        self._buffers = [
            cells.buffers for cells in filled if cells.buffers and cells.value.allocate is not None
        ]
        return same

    def of(self, op: str) -> Run:
        part = self._segment.ops.index(op)
        first, last = part == 0, op == self._segment.ops[-1]

        def run(context: Context) -> None:
            if first:
                self._choose(context.step)
            if self._replayed is not None:
                self._replayed.recording.replay(part)
                for name in context.vertex.op.writes:
                    if name in self._segment.writes:
                        context.write_again(name, self._replayed.outputs[name])
            else:
                if self._capturing is not None and not first:
                    self._capturing[0].part()
                self._run_body(context)
            if last and self._capturing is not None:
                self._keep(context.step)
            elif last and self._first and self._idle:
                self._remember(IDLE)
            self._due += [name for name in context.vertex.op.writes if name in self._kept]
            if self._due and self._capturing is None:  # else the copies would be captured too
                self._hand_out(context.step)

        return run

    def recordings(self) -> Sequence[Recording]:
        """Those of all signatures."""
        return [each.recording for each in self._known.values()]

    def stamp(self) -> Moment:
        """When the stream comes to here."""
        if self._capturing is None:
            return self._stream.stamp()
        self._stamps.append(later := _Later())
        return later

    def leave(self, step: int) -> None:
        """End a capture of which no more will be launched: its step is not done."""
        if self._capturing is not None:
            self._end_capture(Aborted())

    def end(self) -> None:
        """Let go of what the last step worked on."""
        self._forget_step()
        self._memory, self._cells = None, {}

    def _choose(self, step: int) -> None:
        """Before the first op of a step: replay, capture, or run as usual."""
        self._forget_step()
        if self._never is not None or step in self.interrupted:
            self._counts.because(self._never or SWITCHED)
            return
        self._inputs = tuple(self._read(name, step - carry) for name, carry in self._reads)
        try:
            key = self._signature(step)
        except Unstable as error:
            self._counts.because(str(error))
            return
        known = self._known.get(key) or self._moved(key, step)
        if known is not None:
            if known.recording.size:
                self._known[key] = self._known.pop(key)  # the one used last is the last to go
            self._replayed = known
            self._counts.replayed += 1
            self.replayed.append(step)
            return
        reason = self._why_not()
        if reason is not None:
            self._counts.because(reason)
            return
        try:
            recording = self._stream.recording(self._pools.of(self._segment.stream))
        except CannotCapture as error:
            self._never = str(error)
            self._counts.because(self._never)
            return
        self._begin_capture(recording)

    def _forget_step(self) -> None:
        self._replayed, self._capturing, self._outputs = None, None, {}
        self._key, self._shape, self._inputs = None, None, ()
        self._first, self._new, self._idle = False, False, True
        self._due.clear()
        self._done.clear()

    def _begin_capture(self, recording: Recording) -> None:
        within = ExitStack()
        self._capturing = recording, within
        try:
            within.enter_context(capturing(recording))
        except Exception as error:
            self._fall_back(error)

    def _end_capture(self, error: Exception | None = None) -> None:
        """Of what was done within: `error`, or all. Raises what goes wrong with it as a whole."""
        assert self._capturing is not None, "only what has begun is ended"
        (recording, within), self._capturing = self._capturing, None
        try:
            if error is None:
                within.close()
            else:
                if not recording.live:
                    self._pools.failed(self._segment.stream)
                with suppress(Exception):
                    within.__exit__(type(error), error, error.__traceback__)
        finally:
            if self._stamps:
                moment = self._stream.stamp()
                for later in self._stamps:
                    later.moment = moment
                self._stamps.clear()

    def _signature(self, step: int) -> Hashable:
        """All that the bodies can see in a step but the contents of tensors. Raises `Unstable`.

        A state's tensors may lie anywhere: a graph reads what is at the address by then. Values
        that lie elsewhere in each step would only never come up again.
        """
        where = self._where
        return (
            step % self._phases,
            *[where.signature(datum) for datum in self._inputs],
            *[where.signature(buffer) for buffer in self._buffers_of(step)],
            *[signature(state, place) for state in self._states],
        )

    def _buffers_of(self, step: int) -> tuple[Any, ...]:
        return tuple(buffers[step % len(buffers)] for buffers in self._buffers)

    def _moved(self, key: Hashable, step: int) -> _Captured | None:
        """A step of that `key`, which is not known, as one that differs in places only does it.

        None: there is no such step, or it knows its places for ever.
        """
        self._key, buffers = key, self._buffers_of(step)
        states = tuple(signature(state, place) for state in self._states)
        self._shape = alike((*self._inputs, *buffers)), states
        there = self._alike.get(self._shape)
        known = None if there is None else self._known[there]
        if known is None:
            return None
        try:
            moves = self._moves(known, buffers, step)
            recording = known.recording.moved(moves)
            if recording is None:
                return None
            same = {id(before): now for before, now in zip(known.buffers, buffers, strict=True)}
            outputs = {
                name: same[id(datum)] if id(datum) in same else mapped(datum, moves)
                for name, datum in known.outputs.items()
            }
            told = [(output, self._where.signature(output)) for output in outputs.values()]
        except (CannotMove, Unstable):
            return None
        captured = _Captured(recording, outputs, self._inputs, buffers, self._shape)
        self._note(key, captured)
        self._counts.moved += 1
        for output, signed in told:
            self._where.publish(output, signed)
        return captured

    def _moves(self, known: _Captured, buffers: tuple[Any, ...], step: int) -> Moves:
        """From the places of a step to those of this one. Raises `CannotMove`."""
        moves = Moves()
        moves.add_all((known.inputs, known.buffers), (self._inputs, buffers))
        moves.add_all(self._states, self._states)
        for name in self._settled:
            if (datum := known.outputs.get(name)) is not None:
                slot = step % len(self._cells[name].cells)
                for before, now in self._where.beside((self._number, name), slot, datum):
                    moves.add(before, now)
        return moves

    def _note(self, key: Hashable, captured: _Captured) -> None:
        """What replays a step from now on. The oldest goes where they are too many."""
        self._known[key] = captured
        self._alike[captured.alike] = key
        self._size += captured.recording.size
        while self._size > self._terms.share(OPERATIONS) and len(self._known) > 1:
            self._give_up()

    def _why_not(self) -> str | None:
        """Why a step of a key that is not known is not captured now; None if it is."""
        at, shape = hash(self._key), hash(self._shape)
        seen = self._seen.get(shape, 0)
        self._new = at not in self._met
        _last(self._met, at, None)
        if isinstance(seen, str):
            self._remember(seen)
            return seen
        self._remember(seen + 1)
        self._first = seen == 0
        if self._new:
            return FIRST
        if seen < self._terms.usual:
            return SELDOM
        if len(self._known) >= (limit := self._terms.share(LIMIT)):
            return f"{limit} shapes are captured already"
        return None

    def _remember(self, known: int | str) -> None:
        """Of this step's shape: how often it came up, or why it is not captured."""
        _last(self._seen, hash(self._shape), known)

    def _read(self, name: str, version: int) -> Any:
        assert self._memory is not None, "a run is on"
        if version < self._memory.first:
            return self._memory.before(name)(version)
        cells = self._cells[name].cells
        return cells[version % len(cells)]

    def _run_body(self, context: Context) -> None:
        body = context.vertex.op.run
        if self._capturing is None:
            if self._first and context.vertex.name in self._only_change:
                with Changes() as seen:
                    self._as_usual(context)
                self._idle = self._idle and not seen.any
            else:
                self._as_usual(context)
            return
        self._done.append((self._as_usual, context))
        try:
            if body is not None:
                body(_StepBlind(context, self._capturing[0]))
            self._settle(context)
        except Exception as error:
            if self._capturing is not None and self._capturing[0].live:
                self._end_capture(error)
                raise  # what is done is done: the body itself has failed
            self._fall_back(error)

    def _as_usual(self, context: Context) -> None:
        if context.vertex.op.run is not None:
            context.vertex.op.run(context)
        self._settle(context)

    def _settle(self, context: Context) -> None:
        """Bring what was written to its slot: all in a capture, else what is carried."""
        capturing, step = self._capturing is not None, context.step
        for name in context.vertex.op.writes:
            if name not in self._segment.writes:
                continue
            cells, written = self._cells[name].cells, self._cells[name].written
            slot = step % len(cells)
            if written is not None and written[slot] != step:
                self._outputs[name] = None  # nothing this time; the slot still holds an old version
                continue
            self._idle = self._idle and cells[slot] is None
            if name not in self._settled and name in self._on_device:
                self._outputs[name] = None  # nobody reads it but the ops of this very step
                continue
            mine = self._number, name
            if name in (self._settled if capturing else self._carried):
                context.write(name, self._where.settle(mine, slot, cells[slot]))
            else:  # host memory, too: what is on the host already is not copied there
                if name in self._settled and self._new:
                    self._where.reserve(mine, slot, cells[slot])
                if (apart := self._where.apart(cells[slot])) is not cells[slot]:
                    context.write(name, apart)
            self._outputs[name] = cells[slot]

    def _keep(self, step: int) -> None:
        """After the last op: the capture is complete, and has done the step's work."""
        assert self._capturing is not None, "only what is captured is kept"
        recording, _ = self._capturing
        try:
            self._end_capture()
        except Exception as error:
            self._pools.failed(self._segment.stream)
            if recording.live:
                self._because(error)  # the step is done
            else:
                self._run_again(error)
            return
        if recording.refused is not None:
            self._refuse(f"cannot be captured: {recording.refused}")
            return
        try:  # the step's work is done; but can the graph do it again?
            changed = self._signature(step) != self._key
            told = [(output, self._where.signature(output)) for output in self._outputs.values()]
        except Unstable as error:
            self._refuse(f"cannot be captured: {error}")
            return
        if changed:
            self._refuse("cannot be captured: it changes a datum that is not a tensor")
            return
        outputs, buffers = dict(self._outputs), self._buffers_of(step)
        self._note(self._key, _Captured(recording, outputs, self._inputs, buffers, self._shape))
        self._counts.captured += 1
        for output, known in told:
            self._where.publish(output, known)

    def _give_up(self) -> None:
        """The recording that was not replayed for longest."""
        key = next(iter(self._known))
        oldest = self._known.pop(key)
        if self._alike.get(oldest.alike) == key:
            del self._alike[oldest.alike]
        self._size -= oldest.recording.size
        for output in oldest.outputs.values():
            self._where.withdraw(output)

    def _hand_out(self, step: int) -> None:
        """Copies of the versions that the run returns: a graph writes to the same places again.

        Of a fresh value before its last reader is done, who empties the cell.
        """
        for name in self._due:
            cells, written = self._cells[name].cells, self._cells[name].written
            slot = step % len(cells)
            there = written is None or written[slot] == step
            self._kept[name].append(mapped(cells[slot], Tensor.clone) if there else None)
        self._due.clear()

    def _refuse(self, reason: str) -> None:
        self._remember(reason)
        self._counts.because(reason)

    def _fall_back(self, error: Exception) -> None:
        """Something in the segment cannot be captured: do the step so far as usual, and say so."""
        self._end_capture(error)
        self._run_again(error)

    def _because(self, error: Exception) -> None:
        """Say why there is no graph; where that may pass, the next step like it tries again."""
        if may_pass(error):
            self._remember(1)
            self._counts.because(why_failed(error))
        else:
            self._refuse(why_failed(error))

    def _run_again(self, error: Exception) -> None:
        self._because(error)
        for again, context in self._done:
            again(context)


class _StepBlind:
    """A context whose step cannot be seen: a graph would know that of its capture for ever."""

    __slots__ = ("_context", "_recording", "buffer", "read", "state", "vertex", "waited_s", "write")
    firing = 0
    pieces = None  # it is recorded as a whole

    def __init__(self, context: Context, recording: Recording) -> None:
        self._context, self._recording = context, recording
        self.vertex, self.waited_s = context.vertex, 0.0
        self.read, self.write, self.buffer = context.read, context.write, context.buffer
        self.state = context.state

    @property
    def step(self) -> int:
        self._recording.refuse(f"{self.vertex.name!r} uses the number of the step")
        return self._context.step

    def stop(self) -> None:
        self._recording.refuse(f"{self.vertex.name!r} may stop the run")
        self._context.stop()


def _last(latest: dict[int, V], key: int, value: V) -> None:
    """The latest is the last; the one that has not come for longest is forgotten."""
    latest.pop(key, None)
    latest[key] = value
    if len(latest) > REMEMBERED:
        del latest[next(iter(latest))]


def _touched(context: Context) -> set[str]:
    op = context.vertex.op
    return {read.name for read in op.reads} | set(op.writes)
