"""admission: how long the next step is held back before its batch is chosen.

At depth 2 and more the driver schedules a step while the device works on the one before, and then
waits, in `commit`, for the copies of that one. A request that arrives in this wait has missed the
step that was scheduled, and pays for all of it. A delay before the schedule takes the place of that
wait: then the batch is chosen last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import add
from typing import NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from .policy import Policy

FEWEST = 4  # steps to have seen before the first delay
RECOVERY = 1.5  # growth per step of what a starved step has halved


class PastSteps(NamedTuple):
    """What became of the last steps of a size that were scheduled while another was in flight.

    Three sequences of the same length, in seconds, with an entry for each step, oldest first.
    """

    delays_s: Sequence[float]  # it was held back so long
    waits_s: Sequence[float]  # the host was blocked so long afterwards, until results were there
    periods_s: Sequence[float]  # from the schedule of this step to that of the next


@runtime_checkable
class Admission(Protocol):
    """Says how long to hold the next step back.

    It is asked where a delay comes off the wait that follows (not at depth 1), while something is
    in flight and somebody may still arrive. When a batch is chosen changes who is in it, but no
    request's tokens.
    """

    @property
    def window(self) -> int:
        """Past steps of each size that it wants to see; with 0 nothing is recorded."""
        ...

    def delay_s(self, in_flight: int, past: Mapping[int, PastSteps]) -> float:
        """Seconds to wait before the next schedule.

        Args:
            in_flight: query tokens of the step whose results are awaited next.
            past: the last steps by their size. The size is the bit length of the query tokens that
                were in flight: steps of 4 to 7 tokens have size 3.
        """
        ...


class Eager(Policy):
    """As soon as the host can."""

    @property
    def window(self) -> int:
        return 0

    def delay_s(self, in_flight: int, past: Mapping[int, PastSteps]) -> float:
        return 0.0


class JustInTime(Policy):
    """As late as the device's work in flight allows, so that a new request waits less.

    The slack of a step is the time that it was held back and the wait that was left after it. What
    of the slack is taken is decided from the last steps of about the same size: as much as would
    have kept the device idle for no more than `idle_share` of the time, less a margin. The margin
    covers what lies between the end of a step on the device and that of the wait for its copies.

    A step without any wait left has starved the device by an unknown time: it counts as one with
    half the slack, and halves the delay at once. Steps with more tokens take longer, most of all
    those with prompts; one of a size not seen yet is held back like a smaller one.
    """

    margin_us: float = Field(
        default=150.0, ge=0, le=1e6, description="The wait that is left, in µs, at least."
    )
    margin_share: float = Field(
        default=0.02, ge=0, le=1, description="And at least this share of the time of a step."
    )
    idle_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="The share of the time for which the device may be idle because of delays.",
    )
    window: int = Field(
        default=64, ge=FEWEST, le=4096, description="Steps of one size that are remembered."
    )

    def delay_s(self, in_flight: int, past: Mapping[int, PastSteps]) -> float:
        size = max(
            (
                size
                for size, steps in past.items()
                if size <= in_flight.bit_length() and len(steps.periods_s) >= FEWEST
            ),
            default=None,
        )
        if size is None:
            return 0.0
        steps = past[size]
        periods = sorted(steps.periods_s)
        period = periods[len(periods) // 2]
        slacks, limit = self._slacks(steps)
        margin = max(self.margin_us * 1e-6, self.margin_share * period)
        latest = latest_start(slacks, self.idle_share * period)
        return max(0.0, min(latest - margin, period, limit))

    def _slacks(self, steps: PastSteps) -> tuple[list[float], float]:
        """The slack of each step, and what the last of them that starved the device allows."""
        delays, waits, _ = steps
        slacks = list(map(add, delays, waits))
        margin_s = self.margin_us * 1e-6
        least = margin_s / 8  # with less of a wait left, a delay has starved the device
        if min(waits) >= least:
            return slacks, math.inf
        limit = math.inf
        for place, (delay_s, wait_s) in enumerate(zip(delays, waits, strict=True)):
            if delay_s > 0 and wait_s < least:
                limit = slacks[place] = delay_s / 2
            else:
                limit = max(limit * RECOVERY, margin_s)
        return slacks, limit


def latest_start(slacks: Sequence[float], idle: float) -> float:
    """The largest x whose excess over a slack, max(0, x − slack), is `idle` on average.

    Steps that start x late with these slacks make the device wait that long per step.
    """
    budget = idle * len(slacks)
    below = 0.0
    rising = sorted(slacks)
    for count, slack in enumerate(rising):
        if slack * count - below > budget:
            return (budget + below) / count
        below += slack
    return (budget + below) / len(rising)
