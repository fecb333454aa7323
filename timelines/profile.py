"""Durations of ops out of traced runs, for the steps that count."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..executors.report import OpEvent


class Spread(NamedTuple):
    """Of one duration over many steps, in µs."""

    p10: float
    p50: float
    p90: float
    mean: float
    samples: int

    @staticmethod
    def of(figures: Sequence[float]) -> Spread:
        """Raises `ValueError` for no figures."""
        if not figures:
            raise ValueError("a spread needs at least one figure")
        if len(figures) == 1:
            return Spread(figures[0], figures[0], figures[0], figures[0], 1)
        deciles = statistics.quantiles(figures, n=10, method="inclusive")
        return Spread(
            p10=deciles[0],
            p50=statistics.median(figures),
            p90=deciles[-1],
            mean=statistics.fmean(figures),
            samples=len(figures),
        )


def op_times(events: Iterable[OpEvent], steps: Collection[int]) -> dict[str, list[float]]:
    """µs of each op in each of these steps."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.step in steps:
            found[event.op].append((event.end_s - event.start_s) * 1e6)
    return dict(found)


def step_times(events: Iterable[OpEvent], steps: Collection[int]) -> list[float]:
    """µs per step, for each of these steps that follows another of them.

    From the end of the longest op to its end in the step after: of all ops it shifts the least
    within a step.
    """
    ends: defaultdict[str, dict[int, float]] = defaultdict(dict)
    took: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.step in steps:
            ends[event.op][event.step] = event.end_s
            took[event.op] += event.end_s - event.start_s
    if not took:
        return []
    at = ends[max(took, key=lambda op: took[op])]
    return [(end - at[step - 1]) * 1e6 for step, end in sorted(at.items()) if step - 1 in at]


def spreads(samples: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """The spread of each op that has samples."""
    return {op: Spread.of(figures) for op, figures in samples.items() if figures}
