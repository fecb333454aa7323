"""What a timeline says in numbers: who is busy, who waits for what, what overlaps.

Everything is counted over the steady steps, in one window of time for all actors: from when the
busiest actor begins the first of them to when it begins the step after the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ..graph.errors import StepweaveError
from .profile import op_times, pacing_op, times_by_step
from .timeline import Gap, Span, Timeline

Interval = tuple[float, float]


class ActorUse(NamedTuple):
    """How an actor spent a step, on average: `busy_us` + `idle_us` is the mean step."""

    actor: str
    busy_us: float
    idle_us: float
    late_us: float  # of the idle time: hand-over, after all that it waited for was over

    @property
    def busy(self) -> float:
        """The share of its time that it works."""
        whole = self.busy_us + self.idle_us
        return self.busy_us / whole if whole else 0.0


class OpUse(NamedTuple):
    """How long the runs of one op took. `share`: of its actor's time."""

    op: str
    actor: str
    runs: int
    median_us: float
    p90_us: float
    mean_us: float
    share: float


class Cause(NamedTuple):
    """Idle time with one cause: `op` came, each time, after `held` of `distance` steps before.

    `by` is "order" where nothing was waited for: all of it is hand-over. "start": nothing held it.
    """

    actor: str
    op: str
    held: str
    by: str
    distance: int
    times: int
    us: float  # per step
    late_us: float  # the part of it that is hand-over


class Overlap(NamedTuple):
    """Of the host threads' and the devices' time, how much lies beside each other's.

    An interval belongs to the hosts (devices) if any of their actors is busy in it, so several
    streams count once. Host ops that block, or hold the interpreter while a device's worker
    thread wants it, count as busy: on a CPU this says what ran at a time, not what was gained.
    """

    host_us: float  # per step: at least one host thread busy
    device_us: float  # per step: at least one stream busy
    both_us: float

    @property
    def of_device(self) -> float:
        """The share of device time in which a host thread is busy too."""
        return self.both_us / self.device_us if self.device_us else 0.0

    @property
    def hidden(self) -> float:
        """The share of host time that is hidden: a device is busy meanwhile."""
        return self.both_us / self.host_us if self.host_us else 0.0


@dataclass(frozen=True)
class Analysis:
    """A timeline's steady steps in numbers; all times are µs per step."""

    steady: range
    window: Interval
    mean_us: float  # time per step
    actors: tuple[ActorUse, ...]
    ops: tuple[OpUse, ...]
    causes: tuple[Cause, ...]  # of idle time, the largest first
    overlap: Overlap


def analyse(timeline: Timeline) -> Analysis:
    """Raises `StepweaveError` where the run is too short to have steady steps."""
    if not timeline.steady:
        raise StepweaveError(
            f"there is no steady state: of {timeline.steps} steps, all are spent filling and "
            "draining the pipeline. Ask for more tokens, or more steps"
        )
    window = _window(timeline)
    steps = len(timeline.steady)
    gaps = [gap for actor in timeline.actors for gap in _clipped(timeline, actor, window)]
    return Analysis(
        steady=timeline.steady,
        window=window,
        mean_us=(window[1] - window[0]) / steps,
        actors=tuple(_actor_use(timeline, actor, window) for actor in timeline.actors),
        ops=_op_uses(timeline),
        causes=_causes(gaps, steps),
        overlap=_overlap(timeline, window),
    )


def step_lengths(timeline: Timeline) -> tuple[float, ...]:
    """How long each steady step took."""
    return tuple(lengths_by_step(timeline).values())


def lengths_by_step(timeline: Timeline, op: str | None = None) -> dict[int, float]:
    """The same by step, from one start of `op` to its next; None: of the op that paces it."""
    return times_by_step(timeline.events, _starts(timeline), op)


def paced_by(timeline: Timeline) -> str:
    """The op whose starts count as those of the steps. The timeline has steady steps."""
    op = pacing_op(timeline.events, _starts(timeline))
    assert op is not None, "in a steady step something runs"
    return op


def _starts(timeline: Timeline) -> range:
    """The steps between whose starts the steady steps lie."""
    steady = timeline.steady
    return range(steady.start, steady.stop + 1) if steady else steady


def op_costs(timeline: Timeline) -> dict[str, float]:
    """The median duration of each op in µs, over the steady steps; over all if there are none."""
    return {op: median(each) for op, each in _durations(timeline).items()}


def _durations(timeline: Timeline) -> Mapping[str, list[float]]:
    return op_times(timeline.events, timeline.steady or range(timeline.steps))


def _window(timeline: Timeline) -> Interval:
    op, steady = paced_by(timeline), timeline.steady
    return timeline.span(op, steady.start).start_us, timeline.span(op, steady.stop).start_us


def _within(interval: Interval, window: Interval) -> Interval | None:
    start, end = max(interval[0], window[0]), min(interval[1], window[1])
    return (start, end) if end > start else None


def _clipped(timeline: Timeline, actor: str, window: Interval) -> list[Gap]:
    """The gaps that lie in the window, and of those at its ends the part that does."""
    found = []
    for gap in timeline.gaps(actor):
        if part := _within((gap.start_us, gap.end_us), window):
            found.append(gap._replace(start_us=part[0], end_us=part[1]))
    return found


def _busy(timeline: Timeline, actors: Iterable[str], window: Interval) -> list[Interval]:
    """When at least one of the actors works, as disjoint intervals in order."""
    parts = sorted(
        part
        for actor in actors
        for span in timeline.on(actor)
        if (part := _within((span.start_us, span.end_us), window))
    )
    found: list[Interval] = []
    for start, end in parts:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _total(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def _common(left: Sequence[Interval], right: Sequence[Interval]) -> float:
    """How much two lists of disjoint intervals have in common."""
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return total


def _actor_use(timeline: Timeline, actor: str, window: Interval) -> ActorUse:
    steps = len(timeline.steady)
    busy = _total(_busy(timeline, [actor], window))
    late = sum(gap.late_us for gap in _clipped(timeline, actor, window))
    return ActorUse(actor, busy / steps, (window[1] - window[0] - busy) / steps, late / steps)


def _op_uses(timeline: Timeline) -> tuple[OpUse, ...]:
    durations = _durations(timeline)
    actor_of: dict[str, str] = {}
    for span in timeline.events:
        actor_of.setdefault(span.op, span.actor)
    whole = _window(timeline)
    found = [
        OpUse(
            op,
            actor_of[op],
            len(each),
            median(each),
            sorted(each)[min(len(each) * 9 // 10, len(each) - 1)],
            sum(each) / len(each),
            sum(each) / (whole[1] - whole[0]) if whole[1] > whole[0] else 0.0,
        )
        for op, each in durations.items()
    ]
    lanes = {actor: place for place, actor in enumerate(timeline.actors)}
    return tuple(sorted(found, key=lambda use: (lanes[use.actor], -use.share, use.op)))


def _causes(gaps: Iterable[Gap], steps: int) -> tuple[Cause, ...]:
    sums: dict[tuple[str, str, str, str, int], list[Gap]] = {}
    for gap in gaps:
        sums.setdefault(cause_key(gap.actor, gap.after), []).append(gap)
    found = [
        Cause(
            *key,
            times=len(each),
            us=sum(gap.us for gap in each) / steps,
            late_us=sum(gap.late_us for gap in each) / steps,
        )
        for key, each in sums.items()
    ]
    return tuple(sorted(found, key=lambda cause: (-cause.us, cause)))


def cause_key(actor: str, after: Span) -> tuple[str, str, str, str, int]:
    """(actor, op, held by, kind, distance): gaps with one key have one cause."""
    held = after.held
    if held is None:
        return actor, after.op, "", "start", 0
    return actor, after.op, held.op, held.by, after.step - held.step


def _overlap(timeline: Timeline, window: Interval) -> Overlap:
    steps = len(timeline.steady)
    hosts = [actor for actor in timeline.actors if actor not in timeline.streams]
    host = _busy(timeline, hosts, window)
    device = _busy(timeline, sorted(timeline.streams), window)
    return Overlap(_total(host) / steps, _total(device) / steps, _common(host, device) / steps)
