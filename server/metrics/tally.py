"""A histogram of what happens with every token: noted at once, sorted into buckets later."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

MOST_NOTED = 4096
"""So many observations wait to be sorted, where nobody reads them: it takes about a millisecond."""


@dataclass(frozen=True, eq=False)
class Spread:
    """A histogram: its name, what it says, and its buckets."""

    name: str
    says: str
    buckets: Sequence[float]
    labels: tuple[str, ...] = ()


class Tally(Collector):
    """Observations of one quantity, read under each name of `spreads`, which have equal buckets.

    A histogram of Prometheus's library takes a lock twice and goes through the buckets for each
    observation; here that is an entry in a queue. Whoever reads has every observation so far.
    """

    def __init__(self, spreads: Sequence[Spread], common: Sequence[tuple[str, str]]) -> None:
        self._spreads = spreads
        self._names, self._values = [name for name, _ in common], [value for _, value in common]
        self._bounds = spreads[0].buckets
        self._limits = [*(repr(float(each)) for each in self._bounds), "+Inf"]
        self._noted: deque[float] = deque()
        self._lock = threading.Lock()  # of those who sort
        self._counts = [0] * len(self._limits)
        self._sum = 0.0

    def note(self, amount: float) -> None:
        """Take an observation in; any thread."""
        self._noted.append(amount)
        if len(self._noted) >= MOST_NOTED:
            with self._lock:
                self._sort()

    def collect(self) -> Iterator[Metric]:
        """Prometheus's library calls this."""
        with self._lock:
            self._sort()
            counts, total = [*accumulate(self._counts)], self._sum
        buckets = [*zip(self._limits, counts, strict=True)]
        for each in self._spreads:
            family = HistogramMetricFamily(each.name, each.says, labels=self._names)
            family.add_metric(self._values, buckets, total)
            yield family

    def _sort(self) -> None:
        """With the lock: nobody else takes entries out, so as many are there as were counted."""
        for _ in range(len(self._noted)):
            amount = self._noted.popleft()
            self._counts[bisect_left(self._bounds, amount)] += 1
            self._sum += amount
