"""What a backend does otherwise than `stepweave.backends.Backend` says: for authors of one.

What it declares is checked everywhere. Where it finds a device, work is given to that device, so
its pinned memory, its streams and its refusals are checked as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor

from ..backends.backend import Backend
from ..backends.errors import NoDevice
from ..backends.streams import CannotCapture, Moment, Stream, Streams

ROUNDS = 12  # of work that two streams hand over: a wait that is ignored may go well once
NUMBERS = 1 << 16  # of a tensor in that work


def backend_faults(backend: Backend) -> list[str]:
    """A sentence for each thing that is wrong; empty if nothing is.

    Uses the backend's current device, where there is one. Raises what a member raises that it
    should not.
    """
    if not isinstance(backend, Backend):
        return [f"{type(backend).__name__} lacks members of stepweave.backends.Backend"]
    faults = list(_of_what_is_declared(backend))
    if faults or not backend.found():
        return faults
    device = backend.device(backend.name)
    faults += _of_the_device(backend, device)
    if not faults and backend.has_streams:
        faults += _of_streams(backend, device)
    return faults


def _of_what_is_declared(backend: Backend) -> Iterator[str]:
    try:
        kind = torch.device(backend.name).type
    except RuntimeError as error:
        yield f"torch has no device {backend.name!r}: {str(error).splitlines()[0]}"
        return
    if kind != backend.name:
        yield f"name is {backend.name!r}, but torch calls the type {kind!r}"
    if backend.captures and not backend.has_streams:
        yield "captures without streams: it is a stream that records"
    if backend.on_host and backend.has_streams:
        yield "on_host with streams: where an op is done when it returns there is nothing to order"
    if backend.refused(RuntimeError("something else")):
        yield "refused says that any error is a refusal to wait"
    if not backend.has_streams and not _refuses(lambda: backend.streams(torch.device("cpu"))):
        yield "streams does not raise NoDevice, though has_streams is false"


def _of_the_device(backend: Backend, device: torch.device) -> Iterator[str]:
    if device.type != backend.name:
        yield f"device({backend.name!r}) is {device}, of another type"
        return
    if not backend.on_host:
        if device.index is None:
            yield f"device({backend.name!r}) has no number: threads cannot be put on it"
        if not _refuses(lambda: backend.device(f"{backend.name}:999")):
            yield f"device('{backend.name}:999') does not raise NoDevice"
    with backend.entered(device), backend.entered(device):
        there = torch.arange(NUMBERS, device=device)
    if there.is_cpu != backend.on_host:
        yield f"on_host is {backend.on_host}, but host code reads its tensors: {there.is_cpu}"
    first, second = (backend.pinned((3, 4), torch.int32, 7) for _ in range(2))
    if not first.is_cpu or first.dtype != torch.int32 or first.shape != (3, 4):
        yield f"pinned gives a {first.dtype} tensor of shape {list(first.shape)} on {first.device}"
    elif first.tolist() != [[7] * 4] * 3 or not first.is_contiguous():
        yield "pinned gives a tensor that is not filled or not contiguous"
    elif first.data_ptr() == second.data_ptr():
        yield "pinned gives the same memory twice"
    else:
        first.copy_(torch.arange(12).view(3, 4))
        second.copy_(first.to(device, non_blocking=True), non_blocking=True)
        backend.synchronize(device)
        if not torch.equal(first, second):
            yield "what is copied to the device and back has not arrived after synchronize"
    if backend.processors(device) < 1:
        yield "processors is less than 1"
    undo = backend.forbid_waits()
    if undo is not None:
        yield from _of_refusals(backend, there, undo)


def _of_refusals(backend: Backend, there: Tensor, undo: Callable[[], None]) -> Iterator[str]:
    error: Exception | None = None
    try:
        there.sum().item()
    except Exception as caught:
        error = caught
    finally:
        undo()
    if error is None:
        yield "forbid_waits forbids nothing: asking for a number did not raise"
    elif not backend.refused(error):
        yield f"refused does not know its own refusal: {type(error).__name__}: {error}"
    with suppress(Exception):
        there.sum().item()
        return
    yield "what forbid_waits returns does not end it"


def _of_streams(backend: Backend, device: torch.device) -> Iterator[str]:
    streams = backend.streams(device)
    for _ in range(2):  # one object serves one run after another
        with streams.entered():
            opened = streams.open(["one", "two"], frozenset({"two"}))
            try:
                yield from _of_order(backend, device, opened["one"], opened["two"])
                yield from _of_captures(backend, device, opened["one"])
            finally:
                left = streams.close(60.0)
        if left:
            yield f"close leaves streams that are not done: {', '.join(left)}"
    yield from _of_times(backend, device, streams)


def _of_order(backend: Backend, device: torch.device, one: Stream, two: Stream) -> Iterator[str]:
    """Sums that come out wrong if work is done out of order, or too early, or is waited for less.

    `one` adds and doubles; `two` copies that to the host; the host reads when the copy is done.
    """
    numbers = torch.zeros(NUMBERS, dtype=torch.int64, device=device)
    host = [backend.pinned((NUMBERS,), torch.int64, 0) for _ in range(ROUNDS)]
    launched: list[tuple[str, int]] = []
    expected, found = 0, list[int]()
    backend.synchronize(device)

    def compute(step: int) -> None:
        launched.append(("compute", step))
        numbers.add_(step).mul_(2).remainder_(1009)

    def copy(step: int) -> None:
        launched.append(("copy", step))
        host[step].copy_(numbers, non_blocking=True)

    copied = None
    for step in range(ROUNDS):
        if copied is not None:
            one.wait(copied)
        one.run(compute, step, "compute")
        two.wait(one.record())
        two.run(copy, step, "copy")
        copied = two.record()
        if step % 3 == 2:  # sometimes the host is far ahead of the streams
            copied.synchronize()
            found += [int(host[at][-1]) for at in range(step - 2, step + 1)]
    wanted: list[int] = []
    for step in range(ROUNDS):
        expected = (expected + step) * 2 % 1009
        wanted.append(expected)
    for name in ("compute", "copy"):
        steps = [step for work, step in launched if work == name]
        if steps != list(range(ROUNDS)):
            yield f"a stream ran its work in the order {steps}, or more or less than once"
    if found != wanted:
        yield f"work of two streams was not done in the order of their events: {found}"


def _of_captures(backend: Backend, device: torch.device, stream: Stream) -> Iterator[str]:
    count, factors = torch.zeros(1, dtype=torch.int64, device=device), [3, 2]
    backend.synchronize(device)

    def body(step: int) -> None:
        recording = stream.recording("pool")
        with recording.capture():
            count.add_(1)
            recording.between(lambda there: there.mul_(factors.pop()), count)
            count.add_(1)
        recording.replay()

    raised: list[BaseException] = []

    def caught(step: int) -> None:
        try:
            body(step)
        except CannotCapture as error:
            raised.append(error)

    stream.run(caught, 0, "capture")
    stream.record().synchronize()
    if backend.captures and (raised or int(count) != ((0 + 1) * 2 + 1 + 1) * 3 + 1):
        yield (
            "a recording that is captured and replayed once, with a call in between that is made "
            f"anew each time, comes to {int(count)}, not to 13"
        )
    if not backend.captures and not raised:
        yield "recording does not raise CannotCapture, though captures is false"


def _of_times(backend: Backend, device: torch.device, streams: Streams) -> Iterator[str]:
    moments: list[Moment] = []
    with streams.entered():
        stream = streams.open(["one"], frozenset())["one"]
        numbers = torch.zeros(NUMBERS, device=device)

        def work(step: int) -> None:
            moments.append(stream.stamp())
            numbers.cos_()
            moments.append(stream.stamp())

        stream.run(work, 0, "work")
        stream.record().synchronize()
        streams.close(60.0)
    times = [at for moment in moments if (at := moment()) is not None]
    if len(times) != 2:
        yield "a stamp of a stream that has done its work says nothing"
    elif times[0] > times[1]:
        yield "the second stamp of a stream is earlier than the first"


def _refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except NoDevice:
        return True
    return False
