"""Figures of kinds of steps, told apart from what changes for all of them.

How long steps take, on a machine that is now faster and now slower; or what windows come to, in
texts that are now easier and now harder.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log

from ..policies.estimates import Unsure

DRIFT = 0.01**2
"""How far the machine's speed moves from one time to the next, at least: variance of its
logarithm."""

NOISE = 0.03**2
"""The same of how far a single time is off, where nobody says otherwise."""

REMEMBERED = 32
"""Differences of times that follow each other: the last so many tell how large both are."""

UNKNOWN = 1.0
"""The same of a kind that has not been seen: it may take three times as long as another."""

WANDERS = 0.0005**2
"""How far a kind itself moves against the others, as texts grow: from one time to the next."""

STRAY = 3.0
"""A time that is more standard deviations off than this counts as if it were so many."""


class RelativeTimes:
    """Times of kinds, as if all had been measured just now.

    The speed of a machine that is shared drifts by a third within minutes, so times of two kinds
    that were measured minutes apart say little of which is longer. Here the logarithm of a time is
    the sum of its kind's level, of a drift that is the same for all kinds, and of noise: a Kalman
    filter (R. E. Kalman, 1960) follows the first two. Times of two kinds that follow each other
    tell the difference of their levels, as paired measurements do; later ones tell the drift. How
    large drift and noise are is told by times of one kind that follow each other: what differs by
    noise goes back the next time, what differs by drift does not.
    """

    def __init__(
        self, noise: float = NOISE, drift: float = DRIFT, wanders: float = WANDERS
    ) -> None:
        """`noise`: how far a single figure is off, as the variance of its logarithm; `drift`: how
        far all move from one to the next: either at least. `wanders`: how far one of them moves
        alone.
        """
        self._noise, self._drift, self._wanders = noise, drift, wanders
        self._least_noise, self._least_drift = noise, drift
        self._apart, self._back = 2 * noise + drift, noise  # of differences: square, and product
        self._last: tuple[int, float] | None = None
        self._difference: float | None = None  # of the last two, if both are of one kind
        self._place: dict[int, int] = {}
        self._mean = [0.0]  # the drift, then the level of each kind
        self._shared = [[0.0]]  # covariances of these

    def note(self, kind: int, us: float) -> None:
        """A step of this kind took so long, in µs, or came to as much in another unit.

        Raises `ValueError` if that is not above 0.
        """
        logarithm = log(us)
        self._look(kind, logarithm)
        place = self._place.get(kind)
        if place is None:
            place = self._place[kind] = len(self._mean)
            self._mean.append(logarithm - self._mean[0])
            for row in self._shared:
                row.append(0.0)
            self._shared.append([0.0] * place + [UNKNOWN])
        self._shared[0][0] += self._drift
        self._shared[place][place] += self._wanders
        seen = [row[0] + row[place] for row in self._shared]
        variance = seen[0] + seen[place] + self._noise
        most = STRAY * variance**0.5
        off = max(-most, min(most, logarithm - self._mean[0] - self._mean[place]))
        for one, share in enumerate(seen):
            self._mean[one] += share / variance * off
            row = self._shared[one]
            for other, with_it in enumerate(seen):
                row[other] -= share * with_it / variance

    def _look(self, kind: int, logarithm: float) -> None:
        """How far it is from the last one, and how far that was from the one before."""
        before, self._last = self._last, (kind, logarithm)
        if before is None or before[0] != kind:
            self._difference = None
            return
        most = STRAY * self._apart**0.5
        difference = max(-most, min(most, logarithm - before[1]))
        self._apart += (difference**2 - self._apart) / REMEMBERED
        if self._difference is not None:
            self._back += (-difference * self._difference - self._back) / REMEMBERED
        self._difference = difference
        self._noise = max(self._least_noise, self._back)
        self._drift = max(self._least_drift, self._apart - 2 * self._noise)

    def now(self) -> Mapping[int, float]:
        """What a step of each kind that was noted would take now, in µs."""
        drift = self._mean[0]
        return {kind: exp(drift + self._mean[place]) for kind, place in self._place.items()}

    def unsure(self) -> Unsure:
        """By what share times of two kinds that were noted may be off against each other: for each
        pair the standard deviation of the logarithm of their ratio.
        """
        return {
            kind: {
                other: max(0.0, self._shared[a][a] + self._shared[b][b] - 2 * self._shared[a][b])
                ** 0.5
                for other, b in self._place.items()
                if other != kind
            }
            for kind, a in self._place.items()
        }
