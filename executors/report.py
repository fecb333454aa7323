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
    ended_s: float = field(default_factory=perf_counter, compare=False)  # by `perf_counter`

    @property
    def began_s(self) -> float:
        """What `time.perf_counter` said when the run began: the zero of its events."""
        return self.ended_s - self.seconds
