"""What the interpreter itself does in a step, counted in calls of Python functions."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.interpreter import decode_step
from stepweave import executors
from stepweave.executors import run

SOURCES = Path(executors.__file__).parent


def calls_a_step(executor: str) -> float:
    """Python functions called in each of 200 further steps of 13 ops, their bodies left out."""
    plan, called = decode_step(lambda *inputs: 0), Counter[int]()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and Path(frame.f_code.co_filename).parent == SOURCES:
            called[threading.get_ident()] += 1  # each thread has its own: nothing is lost

    def total(steps: int) -> int:
        called.clear()
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            run(plan, executor=executor, steps=steps)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return called.total()

    return (total(220) - total(20)) / 200


OPS, READS, WRITES, LAUNCHES, EVENTS = 13, 13, 9, 5, 2  # of `decode_step`


def test_a_serial_step_calls_an_op_its_accesses_and_asks_once_whether_it_runs() -> None:
    assert round(calls_a_step("serial")) == OPS + READS + WRITES + 1


def test_a_launch_adds_two_calls_and_an_event_few() -> None:
    """An event: recorded, put into a stream's queue, taken by its waiter, and waited for."""
    extra = calls_a_step("threads") - calls_a_step("serial")
    assert round(extra) <= 2 * LAUNCHES + 4 * EVENTS
