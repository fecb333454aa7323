"""What a run returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, NamedTuple


class OpEvent(NamedTuple):
    """One op of one step as it ran; seconds since the run began."""

    op: str
    step: int
    actor: str
    start_s: float
    end_s: float

    @property
    def start_us(self) -> float:
        return self.start_s * 1e6

    @property
    def end_us(self) -> float:
        return self.end_s * 1e6


class Unused(NamedTuple):
    """A declared access that never happened in a run: it costs overlap, and protects nothing."""

    node: str
    op: str
    value: str  # as declared, such as `progress@-1`; or a state
    access: Literal["read", "write"]


@dataclass(frozen=True)
class RunReport:
    """A finished run: `steps` begun (and all of them completed), and what was asked for."""

    steps: int
    kept: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # value -> version per step
    events: tuple[OpEvent, ...] = ()  # by start; empty unless the run was traced
    seconds: float = 0.0
    unused: tuple[Unused, ...] = ()  # found in checking mode
    legs: tuple[tuple[int, str], ...] = ()  # from which step on which plan; empty if only one
    ended_s: float = field(default_factory=perf_counter, compare=False)  # by `perf_counter`

    @property
    def began_s(self) -> float:
        """What `time.perf_counter` said when the run began: the zero of its events."""
        return self.ended_s - self.seconds

    @property
    def parts(self) -> tuple[tuple[str, range], ...]:
        """Each plan that ran, and its steps, one after the other; empty if there is only one."""
        ends = [step for step, _ in self.legs[1:]] + [self.steps]
        return tuple(
            (plan, range(begin, end))
            for (begin, plan), end in zip(self.legs, ends, strict=False)
            if begin < end
        )

    def of_steps(self, steps: range) -> RunReport:
        """The events of some steps in a row, numbered from 0, as a run of its own.

        Raises `ValueError` where nothing ran in them.
        """
        inside = [event for event in self.events if event.step in steps]
        begin = min(event.start_s for event in inside)
        end = max(event.end_s for event in inside)
        return RunReport(
            steps=len(steps),
            events=tuple(
                event._replace(
                    step=event.step - steps.start,
                    start_s=event.start_s - begin,
                    end_s=event.end_s - begin,
                )
                for event in inside
            ),
            seconds=end - begin,
            ended_s=self.began_s + end,
        )
