"""Garbage of tests is collected where a process has more than its room."""

from __future__ import annotations

import weakref

import pytest

from tests import memory
from tests.memory import Memory, settle


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_goes_when_there_is_more_than_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([99, 100, 80, 119, 120, 10, 99, 100, 10])
    monkeypatch.setattr(memory, "resident", lambda: next(sizes))
    settle()  # what other tests have left would be gone through at every look
    looks = Memory(room=100)

    def left() -> bool:
        """Whether a cycle is there after one more look."""
        made = weakref.ref(Cycle())
        looks.look()
        return made() is not None

    assert left()
    assert not left(), "100 are too many; 80 are left, so the next limit is 120"
    assert left()
    assert not left(), "10 are left, and the room is 100"
    assert left()
    assert not left()


def test_the_system_tells_what_a_process_has() -> None:
    if not memory.STATM.exists():
        pytest.skip("this system does not tell")
    before = memory.resident()
    held = bytearray(b"x" * (64 << 20))
    assert memory.resident() - before > len(held) // 2
