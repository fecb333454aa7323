"""When every op of every step ran, and what held it: the same for simulated and measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple


class Predecessor(NamedTuple):
    """Why an op did not start (or end) earlier: it comes after this op of this step."""

    op: str
    step: int
    by: Literal["order", "launch", "comm", "wait"]


class Span(NamedTuple):
    """One op of one step.

    `ready_us`: when all that it comes after was over. What lies between that and its start no
    ordering explains: in a simulation nothing, in a real run the hand-over between threads.
    """

    op: str
    step: int
    actor: str
    start_us: float
    end_us: float
    held: Predecessor | None  # None: it starts with the run
    ready_us: float

    @property
    def us(self) -> float:
        return self.end_us - self.start_us

    @property
    def late_us(self) -> float:
        return self.start_us - self.ready_us


class Gap(NamedTuple):
    """A time in which an actor stands idle between two ops, and what it then goes on with."""

    actor: str
    start_us: float
    end_us: float
    before: Span
    after: Span

    @property
    def us(self) -> float:
        return self.end_us - self.start_us

    @property
    def held(self) -> Predecessor | None:
        """The cause: what `after` comes after and ended last."""
        return self.after.held

    @property
    def waited_us(self) -> float:
        """The part until the cause was over; the rest is hand-over."""
        return min(max(self.after.ready_us - self.start_us, 0.0), self.us)

    @property
    def late_us(self) -> float:
        return self.us - self.waited_us


@dataclass(frozen=True)
class Timeline:
    """When every op of every step runs, by start time.

    `steady`: the steps to judge a period by, without those in which the pipeline fills and
    drains; empty where the run is too short to have any. `streams`: which actors are devices.
    """

    events: tuple[Span, ...]
    actors: tuple[str, ...]
    steps: int
    period_us: float  # time per step in steady state
    streams: frozenset[str] = frozenset()
    steady: range = range(0)

    @property
    def seconds(self) -> float:
        return max((span.end_us for span in self.events), default=0.0) / 1e6

    @cached_property
    def _spans(self) -> Mapping[tuple[str, int], Span]:
        return {(span.op, span.step): span for span in self.events}

    @cached_property
    def _lanes(self) -> Mapping[str, tuple[Span, ...]]:
        lanes: dict[str, list[Span]] = {actor: [] for actor in self.actors}
        for span in self.events:
            lanes[span.actor].append(span)
        return {actor: tuple(spans) for actor, spans in lanes.items()}

    def span(self, op: str, step: int) -> Span:
        return self._spans[op, step]

    def holder(self, span: Span) -> Span | None:
        """What held a span; None where that is nothing, or a skipped step."""
        return None if span.held is None else self._spans.get((span.held.op, span.held.step))

    def on(self, actor: str) -> tuple[Span, ...]:
        """What an actor does, in its order."""
        return self._lanes.get(actor, ())

    def gaps(self, actor: str) -> tuple[Gap, ...]:
        """Each time an actor stands idle between two ops."""
        return tuple(
            Gap(actor, before.end_us, after.start_us, before, after)
            for before, after in pairwise(self.on(actor))
            if after.start_us > before.end_us
        )

    def gap_us(self, actor: str) -> float:
        """Idle time per step between an actor's ops, over the second half of the steps."""
        half = [gap for gap in self.gaps(actor) if gap.after.step >= self.steps // 2]
        idle = sum(gap.end_us - gap.start_us for gap in half)
        return idle / max(1, self.steps - self.steps // 2)

    def critical_path(self) -> tuple[Span, ...]:
        """The chain of ops, each held by the one before, that ends with the last to end."""
        if not self.events:
            return ()
        return self.path_to(max(self.events, key=lambda span: span.end_us))

    def path_to(self, last: Span) -> tuple[Span, ...]:
        """The chain of ops, each held by the one before, that ends with this one."""
        path = [last]
        while (before := self.holder(path[-1])) is not None:
            path.append(before)
        return tuple(reversed(path))


def steady_steps(steps: int, lead: int) -> range:
    """All but the first and last `lead` steps; empty where fewer than three would be left."""
    inner = range(lead, steps - lead)
    return inner if len(inner) >= 3 else range(0)
