"""A figure that is read when somebody asks for it: its name, what it says, where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

From = TypeVar("From")

Labelled = tuple[tuple[str, ...], float]  # the values of the labels, and the figure


@dataclass(frozen=True)
class Figure(Generic[From]):
    """One metric. `read` gives its value, or a value for each of some values of `labels`.

    The name of a counter ends with `_total`. No label has a value that a client has chosen.
    """

    name: str
    kind: Literal["counter", "gauge"]
    says: str
    read: Callable[[From], float | Iterable[Labelled]]
    labels: tuple[str, ...] = ()


def families(
    figures: Sequence[Figure[From]], source: From, common: Sequence[tuple[str, str]]
) -> Iterator[Metric]:
    """The figures as they are now. `common`: labels that all of them have."""
    names, values = [name for name, _ in common], [value for _, value in common]
    for each in figures:
        made = CounterMetricFamily if each.kind == "counter" else GaugeMetricFamily
        family = made(each.name, each.says, labels=[*names, *each.labels])
        found = each.read(source)
        for labels, value in [((), found)] if isinstance(found, int | float) else found:
            family.add_metric([*values, *labels], value)
        yield family
