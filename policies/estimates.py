"""What is known of a figure for 1, 2, … drafts, from what is thought of all and measured of some.

Figures are told as logarithms of their quotients to that of one number, the base: only which one is
larger counts, and by what share. What is thought of two numbers is the less sure the larger one
window is as a multiple of the other: it is off by a random walk along the logarithm of their
tokens. Where some were measured the best guess of all is the mean of a Gaussian process given these
("kriging", D. G. Krige, 1951).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erf, exp, log, pi, sqrt
from typing import NamedTuple, TypeAlias

Unsure: TypeAlias = Mapping[int, Mapping[int, float]]
"""For pairs of numbers the standard deviation of the logarithm of their measured quotient."""

EXACT = 1e-6
"""The least variance of a quotient that was measured: two may be known equally well."""


class Estimates(NamedTuple):
    """Of 1, 2, … drafts; those of the base are 0 both."""

    means: Sequence[float]  # logarithms of quotients to the base
    variances: Sequence[float]

    def as_sure(self, sure: bool) -> Estimates:
        """The same, and nothing unsure about it if `sure`."""
        return Estimates(self.means, [0.0] * len(self.means)) if sure else self

    def over(self, other: Estimates) -> Estimates:
        """Those of the quotient of two figures that nothing else connects."""
        return Estimates(
            [a - b for a, b in zip(self.means, other.means, strict=True)],
            [a + b for a, b in zip(self.variances, other.variances, strict=True)],
        )


def estimated(
    thought: Sequence[float],
    measured: Mapping[int, float],
    unsure: Unsure,
    base: int,
    off: float,
) -> Estimates:
    """Of as many numbers as something is thought of, among which is the base.

    `off`: by what share what is thought may be off where a window has e times as many tokens: a
    standard deviation. Where the base was not measured, nothing is: no other number can be compared
    with it. Raises nothing of its own.
    """
    count = len(thought)
    ways = [log((drafts + 1) / (base + 1)) for drafts in range(1, count + 1)]
    from_base = unsure.get(base, {}) if base in measured else {}
    known = [drafts for drafts in from_base if drafts in measured and 1 <= drafts <= count]
    means = [log(each / thought[base - 1]) for each in thought]
    variances = [off**2 * abs(way) for way in ways]
    if not known:
        return Estimates(means, variances)
    shared = [[off**2 * _in_common(ways[one - 1], way) for way in ways] for one in known]
    together = [
        [shared[row][other - 1] + _noise(unsure, base, one, other) for other in known]
        for row, one in enumerate(known)
    ]
    news = [log(measured[one] / measured[base]) - means[one - 1] for one in known]
    weights = _solved(together, [[new, *row] for new, row in zip(news, shared, strict=True)])
    for place in range(count):
        for row, weight in zip(shared, weights, strict=True):
            means[place] += row[place] * weight[0]
            variances[place] -= row[place] * weight[place + 1]
    return Estimates(means, [max(0.0, each) for each in variances])


def _in_common(one: float, other: float) -> float:
    """How much of their ways two walks from the base have in common."""
    return min(abs(one), abs(other)) if one * other > 0 else 0.0


def _noise(unsure: Unsure, base: int, one: int, other: int) -> float:
    """The covariance of two measured quotients to the base, from variances of differences."""
    both = unsure[base][one] ** 2 + unsure[base][other] ** 2
    return both / 2 + EXACT if one == other else (both - unsure[one][other] ** 2) / 2


def _solved(matrix: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    """X with `matrix` · X = `right`, by Gaussian elimination: of some numbers a library would take
    longer to call. The matrix is symmetric and positive definite."""
    rows = [[*left, *more] for left, more in zip(matrix, right, strict=True)]
    for place, pivot in enumerate(rows):
        for below in rows[place + 1 :]:
            factor = below[place] / pivot[place]
            below[place:] = [
                a - factor * b for a, b in zip(below[place:], pivot[place:], strict=True)
            ]
    found: list[list[float]] = []
    for place in reversed(range(len(rows))):
        left, more = rows[place][: len(rows)], rows[place][len(rows) :]
        for factor, below in zip(left[place + 1 :], reversed(found), strict=True):
            more = [a - factor * b for a, b in zip(more, below, strict=True)]
        found.append([each / left[place] for each in more])
    return found[::-1]


def hoped(mean: float, variance: float) -> float:
    """What is gained in the mean by knowing a normal variable, and taking it or 0: "expected
    improvement" (J. Mockus, 1975). Raises nothing."""
    if variance <= 0:
        return max(0.0, mean)
    off = sqrt(variance)
    far = mean / off
    density = exp(-far * far / 2) / sqrt(2 * pi)
    return off * density + mean * (1 + erf(far / sqrt(2))) / 2
