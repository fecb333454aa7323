"""Every backend keeps the contract; and one that does not is told what it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.backends import Backend
from stepweave.backends.registry import backend_named, known_backends
from stepweave.backends.streams import Event
from stepweave.testing import backend_faults
from stepweave.testing.devices.virtual_streams import VirtualStream, VirtualStreams
from tests.device.emulated import BACKEND, DEVICE, SWITCH, EmulatedBackend


def test_every_backend_keeps_the_contract() -> None:
    """Of one whose device is not on this machine, what it declares."""
    assert {"cpu", "cuda", "emulated"} <= set(known_backends())
    for name in known_backends():
        assert backend_faults(backend_named(name)) == [], name


def test_the_device_of_the_tests_is_checked_whole() -> None:
    assert backend_named("emulated").found()
    assert backend_named("emulated").device("emulated") == DEVICE


class _Deaf(VirtualStream):
    def wait(self, event: Event) -> None:
        """Not at all."""


class _Twice(VirtualStream):
    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        super().run(work, step, node)
        super().run(work, step, node)


class _Early(VirtualStream):
    """Its events are done when they are recorded."""

    def record(self) -> Any:
        event = super().record()
        event.done = True
        return event


class _Capturing(VirtualStream):
    def recording(self, pool: str) -> Any:
        class Never:
            def capture(self) -> nullcontext[None]:
                return nullcontext()

            def part(self) -> None:
                """Nothing."""

            def between(self, call: object, *tensors: Tensor) -> None:
                """Nothing."""

            def replay(self, part: int = 0) -> None:
                """Nothing."""

        return Never()


class _Backwards(VirtualStream):
    _now = 0.0

    def stamp(self) -> Callable[[], float]:
        self._now -= 1.0
        now = self._now
        return lambda: now


def streams_of(kind: type[VirtualStream], **members: Any) -> Callable[..., VirtualStreams]:
    """Virtual streams of that kind."""

    class Faulty(VirtualStreams):
        def open(
            self, streams: Sequence[str], urgent: frozenset[str]
        ) -> Mapping[str, VirtualStream]:
            self._streams = {name: kind(self) for name in streams}
            return self._streams

    for name, member in members.items():
        setattr(Faulty, name, member)

    def streams(backend: object, device: object, *, ranges: bool = False) -> VirtualStreams:
        from random import Random

        return Faulty(Random(1))

    return streams


ONES = torch.ones(3, 4, dtype=torch.int32)


def scattered(backend: object, shape: Sequence[int], dtype: torch.dtype, fill: int) -> Tensor:
    return torch.full((shape[-1], *shape[:-1]), fill, dtype=dtype).transpose(0, -1)


BROKEN: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a name that torch does not know": ({"name": "gadget"}, "torch has no device 'gadget'"),
    "captures without streams": ({"captures": True, "has_streams": False}, "captures without"),
    "a host with streams": ({"on_host": True}, "on_host with streams"),
    "another type of device": (
        {"device": lambda self, name: torch.device("cpu")},
        "of another type",
    ),
    "a device without a number": (
        {"device": lambda self, name: torch.device("emulated")},
        "has no number",
    ),
    "any number": ({"device": lambda self, name: DEVICE}, "does not raise NoDevice"),
    "pinned memory of another dtype": (
        {"pinned": lambda self, shape, dtype, fill: torch.full(tuple(shape), fill)},
        "pinned gives a torch.int64 tensor",
    ),
    "pinned memory that is not filled": (
        {"pinned": lambda self, shape, dtype, fill: torch.zeros(tuple(shape), dtype=dtype)},
        "not filled",
    ),
    "scattered pinned memory": ({"pinned": scattered}, "not contiguous"),
    "the same pinned memory": (
        {"pinned": lambda self, shape, dtype, fill: ONES.fill_(fill)},
        "the same memory twice",
    ),
    "no processors": ({"processors": lambda self, device: 0}, "less than 1"),
    "a refusal that refuses nothing": (
        {"forbid_waits": lambda self: lambda: None},
        "forbids nothing",
    ),
    "a refusal that does not end": (
        {"forbid_waits": lambda self: (BACKEND.forbid_waits(), lambda: None)[1]},
        "does not end it",
    ),
    "a refusal that it does not know": (
        {
            "forbid_waits": lambda self: BACKEND.forbid_waits(),
            "refused": lambda self, error: False,
        },
        "does not know its own refusal",
    ),
    "every error a refusal": ({"refused": lambda self, error: True}, "any error is a refusal"),
    "streams that it does not have": ({"has_streams": False}, "does not raise NoDevice"),
    "waits that are ignored": ({"streams": streams_of(_Deaf)}, "in the order of their events"),
    "work done twice": ({"streams": streams_of(_Twice)}, "more or less than once"),
    "events that are done at once": ({"streams": streams_of(_Early)}, "in the order of their"),
    "captures that do nothing": (
        {"captures": True, "streams": streams_of(_Capturing)},
        "comes to 2, not to 13",
    ),
    "captures that are not declared": (
        {"streams": streams_of(_Capturing)},
        "does not raise CannotCapture",
    ),
    "time that goes backwards": ({"streams": streams_of(_Backwards)}, "earlier than the first"),
    "work that is left": (
        {"streams": streams_of(VirtualStream, close=lambda self, seconds: ["one"])},
        "not done: one",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_backend_is_told_what_is_wrong(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members, said = BROKEN[what]
    broken: Backend = type("Broken", (EmulatedBackend,), dict(members))()
    monkeypatch.setattr(SWITCH, "forbids", False)  # and so again at the end
    assert any(said in fault for fault in backend_faults(broken)), backend_faults(broken)


def test_an_object_without_the_members_is_none() -> None:
    faults = backend_faults(object())  # type: ignore[arg-type]
    assert faults == ["object lacks members of stepweave.backends.Backend"]
