"""What a device that works beside the host has: streams that work in order, and events.

Three calls on a stream and one on an event are the whole interface, so that everything above it
(which event is recorded when, who waits for it, in which order the calls are made) is the same
code on a GPU, on worker threads and on streams of a virtual clock, and is tested without a GPU.

    stream.run(work, step, node)   enqueue work(step); called here or later, never out of order
    stream.record()                an event: all work that the stream has been given so far is done
    stream.wait(event)             what the stream is given from now on runs after the event
    event.synchronize()            block the calling host thread until then

As on a CUDA stream, an event must have been recorded before anybody can wait for it, and work
given to a stream may still be going on when the call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Moment = Callable[[], float | None]  # seconds of `perf_counter`; None: not yet come by


class CannotCapture(RuntimeError):
    """This stream cannot record, or a body did what no recording can hold."""


class Recording(Protocol):
    """Work of a stream that was recorded once and can be done again by one call."""

    @property
    def live(self) -> bool:
        """Whether work is done as it is recorded, so that what cannot be recorded can go on."""

    @property
    def refused(self) -> str | None:
        """After a capture: why there is nothing to replay. None: there is."""

    @property
    def size(self) -> int:
        """After a capture: the operations that the host keeps and does one by one in a replay."""

    def refuse(self, reason: str) -> None:
        """What is done now cannot be recorded. Raises `CannotCapture` where it cannot go on."""

    def capture(self) -> AbstractContextManager[object]:
        """Record what is done within. At the end all of it has been done, once.

        One that raises has done nothing, and may leave its pool unusable. The thread that began a
        capture ends it, and gives the stream nothing but work meanwhile: no event, no wait.
        """

    def part(self) -> None:
        """Within a capture: what follows is another part."""

    def between(self, call: Callable[..., None], *tensors: Tensor) -> None:
        """Within a capture: `call(*tensors)` is not recorded, but called now and in each replay.

        It comes after what was recorded before and before what follows. `tensors[...]` may lie
        elsewhere in a replay; the call reads and writes what it is given, and nothing else that is
        recorded. A capture with such a call may fail after it has done something.
        """

    def moved(self, change: Callable[[Tensor], Tensor]) -> Recording | None:
        """The same work on other data: in place of each tensor `[...]`, what `change` makes of it.

        That has the same shape. None: a recording knows its data by address for ever. Raises what
        `change` raises.
        """

    def replay(self, part: int = 0) -> None:
        """Do a part again, in the stream's order; each is asked for, in turn.

        Where work is captured as one, all of it is part 0, and the others are nothing.
        """


class Event(Protocol):
    """A point in a stream's work. Recorded once: never re-armed, so never lost."""

    def synchronize(self) -> None:
        """Block the calling thread until the stream has come to it."""


class Stream(Protocol):
    """A queue of work that a device does in order."""

    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        """Enqueue `work(step)`. To profilers it is called `node/step`."""

    def record(self) -> Event:
        """An event after all that was enqueued so far."""

    def wait(self, event: Event) -> None:
        """Begin what is enqueued from here on only after `event`, of any stream of the device."""

    def stamp(self) -> Moment:
        """When the stream comes to here; for timelines. Within a capture it cannot be known."""

    def recording(self, pool: str) -> Recording:
        """Something to capture with, within `run`. Recordings of one pool work in the same
        memory: they never run at the same time. Raises `CannotCapture` where a stream cannot."""


class Streams(Protocol):
    """The streams of one device. One object serves one run after another."""

    @property
    def defers(self) -> bool:
        """Whether what a body started may go on after the body has returned, as kernels do.

        Then data must outlive the body (see `executors/hold.py`), and only the stream knows its
        times.
        """

    @property
    def advice(self) -> str:
        """What a user does to learn which op failed, once work has failed; empty if nothing."""

    def entered(self) -> AbstractContextManager[object]:
        """What every host thread of a run is within: this device is the thread's current one.

        A new thread begins on the first GPU, whatever the thread that started it is on.
        """

    def open(self, streams: Sequence[str], urgent: frozenset[str]) -> Mapping[str, Stream]:
        """New streams. The `urgent` ones go first where both have work."""

    def close(self, seconds: float | None) -> Sequence[str]:
        """Wait until all streams have done their work, at most so long; those that have not."""

    def abort(self) -> None:
        """Wake whoever waits for an event: its work may never be done."""
