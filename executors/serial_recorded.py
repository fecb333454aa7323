"""The serial program, recording segments of device ops and replaying them, as `capture.py` says.

One thread runs all ops in the reference order, so segments are runs of device ops in that order.
`run_serial` records nothing: it stays what every executor is compared with, this one too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..backends.streams import Event, Moment, Recording
from ..backends.tape.tapes import Tapes
from ..graph.plan import Plan
from . import threads
from .capture import Captures
from .report import RunReport
from .run_arguments import RunArguments
from .serial import run_serial
from .serial_program import SerialProgram


class Called:
    """The calling thread in the place of a stream: what it is given is done at once."""

    def __init__(self) -> None:
        self._tapes = Tapes()

    def run(self, work: Any, step: int, node: str) -> None:
        work(step)

    def record(self) -> Event:
        return _Past()

    def wait(self, event: Event) -> None:
        """All that it was given is done."""

    def stamp(self) -> Moment:
        now = perf_counter()
        return lambda: now

    def recording(self, pool: str) -> Recording:
        """A tape of the operations."""
        return self._tapes.of(pool)


class _Past:
    def synchronize(self) -> None:
        """It is done."""


@dataclass
class OnOneThread:
    """An executor. What was captured lives as long as this object: use one for all runs of an
    engine. `pieces`: tokens of the largest step of which ops may have parts recorded.
    """

    pieces: int = 0
    captures: Captures | None = field(default=None, init=False)
    _stream: Called = field(default_factory=Called, init=False, repr=False, compare=False)

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        plans = given.plans(plan)
        if self.captures is None or not self.captures.fit(plans):
            self.captures = Captures(
                *plans,
                noted=False,
                usual=threads.USUAL,
                largest=self.pieces,
                order=lambda each: SerialProgram.of(each.graph).order(),
            )
            self._stream = Called()
        streams = {segment.stream: self._stream for segment in self.captures.counts}
        try:
            return run_serial(plan, given, self.captures, streams)
        finally:
            for each in self.captures.of_plans:
                for segment in each.segments:  # one that an error has left open
                    each.leave(segment.ops[0], self._stream)
            self.captures.end()
