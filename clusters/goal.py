"""Which layout is best: by throughput or by latency, among those that keep to limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ..configs.errors import ConfigError, Mark
from ..graph.errors import did_you_mean
from ..loadgen.summary import LATENCIES
from .simulation import Outcomes

Goal = Literal["throughput", "latency"]
_STATISTICS = ("mean", "p50", "p90", "p99")
LIMITS: tuple[str, ...] = tuple(
    f"{name}_{each}" for name in (*LATENCIES, "queue") for each in _STATISTICS
)


@dataclass(frozen=True)
class Limit:
    """`ttft_p99=500`: the 99th percentile of the time to the first token is at most 500 ms."""

    name: str
    most_ms: float

    @staticmethod
    def of(text: str) -> Limit:
        """Raises `ConfigError`."""
        name, equals, written = text.partition("=")
        mark = Mark(f"--limit {text}")
        if name not in LIMITS:
            said = f"unknown latency {name!r}{did_you_mean(name, LIMITS)}: use one of "
            raise ConfigError.at(mark, said + ", ".join(LIMITS))
        try:
            most_ms = float(written)
        except ValueError:
            most_ms = -1.0
        if not equals or not 0 < most_ms < float("inf"):
            raise ConfigError.at(mark, "write it as NAME=MS, as in ttft_p99=500")
        return Limit(name, most_ms)

    def found_ms(self, outcomes: Outcomes) -> float:
        latency, _, statistic = self.name.rpartition("_")
        summary = outcomes.summary
        found = outcomes.queue if latency == "queue" else summary.latencies[latency]
        return found.mean if statistic == "mean" else found.percentiles[float(statistic[1:])]

    def broken_by(self, outcomes: Outcomes) -> str | None:
        """What to say of a layout that is above it; None where it is not."""
        if not outcomes.summary.completed:
            return "no request was completed"
        found = self.found_ms(outcomes)
        if found <= self.most_ms:
            return None
        return f"{self.name} is {found:,.0f} ms, above {self.most_ms:g}"


_GOALS: Mapping[Goal, Callable[[Outcomes], float]] = MappingProxyType(
    {
        "throughput": lambda each: -each.summary.output_throughput,
        "latency": lambda each: (
            each.summary.latencies["e2el"].mean if each.summary.completed else float("inf")
        ),
    }
)
MEASURE: Mapping[Goal, str] = MappingProxyType(
    {"throughput": "most output tokens a second", "latency": "shortest mean end-to-end latency"}
)


def best(outcomes: Sequence[Outcomes], goal: Goal, limits: Sequence[Limit]) -> Outcomes | None:
    """The best layout that serves every request and keeps to the limits; None where none does."""
    fit = [each for each in outcomes if not broken(each, limits)]
    return min(fit, key=_GOALS[goal], default=None)


def broken(outcomes: Outcomes, limits: Sequence[Limit]) -> list[str]:
    """Why a layout is out of the question."""
    failed = outcomes.summary.failed
    said = [f"{failed} requests refused"] if failed else []
    return said + [text for each in limits if (text := each.broken_by(outcomes))]
