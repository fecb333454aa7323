"""From the outcomes of a load to the figures that are reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .outcome import Outcome, peak_concurrency
from .runner import Ran

PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True)
class Distribution:
    """Of one latency over all requests, in ms. Percentiles are interpolated linearly.

    `count`: of how many values; all is zero where there is none.
    """

    count: int
    mean: float
    std: float
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, seconds: Iterable[float | None], wanted: Sequence[float]) -> Distribution:
        """Of the seconds that are known."""
        known = [each * 1e3 for each in seconds if each is not None]
        ms = np.array(known or [0.0])
        found = dict(zip(wanted, map(float, np.percentile(ms, wanted)), strict=True))
        return cls(len(known), float(ms.mean()), float(ms.std()), found)

    @property
    def median(self) -> float:
        return self.percentiles[50.0]


LATENCIES = {  # key of the JSON result: name, heading of the table
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


@dataclass(frozen=True)
class Summary:
    """Counts and rates of a load. Only requests that succeeded count for tokens and latencies."""

    completed: int
    failed: int
    seconds: float
    input_tokens: int | None  # None: the server does not tell
    cached_tokens: int | None  # of them, found in a prefix cache; None where nobody tells
    output_tokens: int
    peak_output_throughput: float  # tokens in the best second
    peak_concurrency: int
    latencies: Mapping[str, Distribution]
    errors: Mapping[str, int]  # by message, the most frequent first

    @classmethod
    def of(cls, ran: Ran, wanted: Sequence[float] = PERCENTILES) -> Summary:
        """`wanted` are percentiles; the median is one of them in any case."""
        good = [each for each in ran.outcomes if each.error is None]
        percentiles = sorted({50.0, *wanted})
        seconds: dict[str, Sequence[float | None]] = {
            "ttft": [each.ttft_s for each in good],
            "tpot": [each.tpot_s for each in good],
            "itl": [gap for each in good for gap in each.itl_s],
            "e2el": [each.e2e_s for each in good],
        }
        errors = Counter(each.error for each in ran.outcomes if each.error is not None)
        return cls(
            completed=len(good),
            failed=len(ran.outcomes) - len(good),
            seconds=ran.seconds,
            input_tokens=_sum_of_known(each.prompt_tokens for each in good),
            cached_tokens=_sum_of_known(each.cached_tokens for each in good),
            output_tokens=sum(each.tokens for each in good),
            peak_output_throughput=max(throughput(good, ran.began_s), default=0.0),
            peak_concurrency=peak_concurrency(ran.outcomes),
            latencies={key: Distribution.of(seconds[key], percentiles) for key in LATENCIES},
            errors=dict(errors.most_common()),
        )

    def per_second(self, count: float) -> float:
        return count / self.seconds if self.seconds > 0 else 0.0

    @property
    def request_throughput(self) -> float:
        return self.per_second(self.completed)

    @property
    def output_throughput(self) -> float:
        return self.per_second(self.output_tokens)

    @property
    def total_throughput(self) -> float | None:
        if self.input_tokens is None:
            return None
        return self.per_second(self.input_tokens + self.output_tokens)

    def to_json(self) -> dict[str, Any]:
        """The names that scripts know from other load generators; null: there is no such value."""
        found: dict[str, Any] = {
            "duration": self.seconds,
            "completed": self.completed,
            "failed": self.failed,
            "total_input_tokens": self.input_tokens,
            "total_cached_tokens": self.cached_tokens,
            "total_output_tokens": self.output_tokens,
            "request_throughput": self.request_throughput,
            "output_throughput": self.output_throughput,
            "total_token_throughput": self.total_throughput,
            "max_output_tokens_per_s": self.peak_output_throughput,
            "max_concurrent_requests": self.peak_concurrency,
        }
        for key, each in self.latencies.items():
            of_key = {f"mean_{key}_ms": each.mean, f"median_{key}_ms": each.median}
            of_key[f"std_{key}_ms"] = each.std
            for wanted, ms in each.percentiles.items():
                if wanted != 50.0:
                    of_key[f"p{wanted:g}_{key}_ms"] = ms
            found |= of_key if each.count else dict.fromkeys(of_key)
        return found | {"errors": dict(self.errors)}


def _sum_of_known(counts: Iterable[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def throughput(outcomes: Sequence[Outcome], began_s: float) -> list[float]:
    """Output tokens in each second since `began_s`.

    The tokens of an answer are spread evenly over the moments at which some came.
    """
    found: dict[int, float] = {}
    for each in outcomes:
        for at in each.arrivals:
            second = int(at - began_s)
            found[second] = found.get(second, 0.0) + each.tokens / len(each.arrivals)
    return [found.get(second, 0.0) for second in range(max(found, default=-1) + 1)]
