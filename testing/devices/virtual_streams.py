"""Streams of a device that is not there: work is done later, by chance, again from one seed.

They stand where CUDA streams stand, under the same executor and the same calls. What a stream is
given runs any time until somebody waits for it: at once, or while the host is steps ahead, each
stream at its own pace. So a call that comes too late, waits for the wrong event or frees what is
still read is found on a machine without a GPU.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter

from ...backends.streams import CannotCapture, Event, Moment, Recording
from ...executors.concurrent import run_on
from ...executors.report import RunReport
from ...executors.run_arguments import RunArguments
from ...graph.plan import Plan

LINGER = 0.6  # the chance, at each call, that the device does not get on with anything


class VirtualEvent:
    """Done once its stream has come to it."""

    def __init__(self, device: VirtualStreams) -> None:
        self.done = False
        self._device = device

    def synchronize(self) -> None:
        self._device.go_on_until(self)


Item = Callable[[], None] | VirtualEvent  # something to do, or an event to wait for


@dataclass
class VirtualStream:
    """What a stream still has to do."""

    device: VirtualStreams
    items: deque[Item] = field(default_factory=deque)

    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        self.device.give(self, partial(work, step))

    def record(self) -> VirtualEvent:
        event = VirtualEvent(self.device)

        def come_by() -> None:
            event.done = True

        self.device.give(self, come_by)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, VirtualEvent), "streams wait for their own device's events"
        self.device.give(self, event)

    def stamp(self) -> Moment:
        """Called by work that is under way."""
        now = perf_counter()
        return lambda: now

    def recording(self, pool: str) -> Recording:
        """Raises `CannotCapture`: there is nothing to record."""
        raise CannotCapture("streams that work late run everything as usual")

    def blocked(self) -> bool:
        head = self.items[0] if self.items else None
        return head is None or (isinstance(head, VirtualEvent) and not head.done)


@dataclass
class VirtualStreams:
    """A device. All its work is done by the threads that call it, under one lock."""

    random: Random
    defers: bool = field(default=True, init=False)
    advice: str = field(default="", init=False)
    _streams: dict[str, VirtualStream] = field(default_factory=dict, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def entered(self) -> nullcontext[None]:
        """There is no device to be on."""
        return nullcontext()

    def open(self, streams: Sequence[str], urgent: frozenset[str]) -> Mapping[str, VirtualStream]:
        self._streams = {name: VirtualStream(self) for name in streams}
        return self._streams

    def close(self, seconds: float | None) -> Sequence[str]:
        with self._lock:
            while self._go_on():
                pass
        return [name for name, stream in self._streams.items() if stream.items]

    def abort(self) -> None:
        """Nobody sleeps here: whoever waits does the work."""

    def give(self, stream: VirtualStream, item: Item) -> None:
        with self._lock:
            stream.items.append(item)
            while self.random.random() > LINGER and self._go_on():
                pass

    def go_on_until(self, event: VirtualEvent) -> None:
        with self._lock:
            while not event.done:
                moved = self._go_on()
                assert moved, "an event that was recorded is come to in the end"

    def _go_on(self) -> bool:
        """One item of a stream that can; False if none can."""
        ready = [stream for stream in self._streams.values() if not stream.blocked()]
        if not ready:
            return False
        item = self.random.choice(ready).items.popleft()
        if not isinstance(item, VirtualEvent):
            item()
        return True


@dataclass(frozen=True)
class Deferred:
    """An executor on streams that do whole bodies late, in an order drawn from `seed`.

    With one host thread a seed repeats a run.
    """

    seed: int = 0

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        return run_on(
            VirtualStreams(Random(self.seed)),
            plan,
            given,
        )
