"""Paired measurements: A and B run in turn, and only ratios of one round are compared.

The same work drifts by a factor of two over minutes on a shared machine. Two runs that follow
each other drift together, so the median of their ratios says what the difference is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of one figure over the rounds."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(figures: Sequence[float]) -> Spread:
        low, middle, high = cuts(figures, 4)
        return Spread(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f}  [{self.low:.3f} … {self.high:.3f}]"


def own_process() -> None:
    """Say that the process is the benchmark's own, and all is imported: it is for good.

    A full collection of what torch and transformers have at import takes 0.3 s. Commands freeze it,
    too; else the side is slow on which the collector's turn happens to fall.
    """
    gc.collect()
    gc.freeze()


def cuts(figures: Sequence[float], parts: int) -> list[float]:
    """The figures that cut the given ones into equal parts; of a single one it is each of them."""
    if len(figures) == 1:
        return [figures[0]] * (parts - 1)
    return statistics.quantiles(figures, n=parts)


def at_least_one(text: str) -> int:
    """An argument of a command that counts something: of none, nothing can be said."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def rounds(
    count: int, a: Callable[[], float], b: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """`count` rounds of both, in alternating order, after one round that is not counted."""
    a(), b()
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(count):
        first, second = (a, b) if turn % 2 == 0 else (b, a)
        one, two = first(), second()
        found[0].append(one if turn % 2 == 0 else two)
        found[1].append(two if turn % 2 == 0 else one)
    return found


def machine() -> dict[str, Any]:
    """Where and with what a table was measured."""
    return {
        "date": date.today().isoformat(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "xgrammar")},
    }


def save(name: str, result: dict[str, Any], path: Path | None) -> None:
    """Write a result with its circumstances, as JSON, next to the others."""
    target = path or Path(__file__).parent / "results" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    print(f"written to {target}")
