"""The same load on two sides in turn, and how their figures relate.

Machines drift, so the figures of one side say little about the other: only the ratio of two turns
of the same round does. The order of the sides alternates from round to round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from .load import Load, Result
from .summary import LATENCIES

Turn = Callable[[Load], Awaitable[Result]]


@dataclass(frozen=True)
class Figure:
    """One that is compared: its key in the JSON result and its name in the table."""

    key: str
    name: str


def figures(percentiles: Sequence[float]) -> list[Figure]:
    """Throughputs, and of each latency the mean, the median and these percentiles."""
    found = [
        Figure("request_throughput", "Request throughput (req/s)"),
        Figure("output_throughput", "Output token throughput (tok/s)"),
        Figure("total_token_throughput", "Total token throughput (tok/s)"),
    ]
    named = [(f"p{each:g}", f"P{each:g}") for each in sorted({*percentiles} - {50.0})]
    for key, (name, _) in LATENCIES.items():
        for of, called in (("mean", "Mean"), ("median", "Median"), *named):
            found.append(Figure(f"{of}_{key}_ms", f"{called} {name} (ms)"))
    return found


@dataclass(frozen=True)
class Ratio:
    """B over A of one figure: the median over the rounds, the smallest and the largest."""

    figure: Figure
    a: float | None  # median over the rounds that have the figure
    b: float | None
    rounds: tuple[float, ...]  # the ratio of each in which both have the figure

    @property
    def median(self) -> float | None:
        return median(self.rounds) if self.rounds else None

    def to_json(self) -> dict[str, Any]:
        span = {"min": min(self.rounds), "max": max(self.rounds)} if self.rounds else {}
        ratio = {"median": self.median, **span, "rounds": list(self.rounds)}
        return {"a": self.a, "b": self.b, "ratio": ratio}


@dataclass(frozen=True)
class Comparison:
    """The results of both sides, round by round."""

    names: tuple[str, str]
    rounds: tuple[tuple[Result, Result], ...]
    interrupted: bool = False  # the round that was, is not among them

    @property
    def failed(self) -> int:
        """Requests that failed, of both sides."""
        return sum(each.summary.failed for both in self.rounds for each in both)

    def ratios(self) -> list[Ratio]:
        """Of every figure; none where no round was finished."""
        if not self.rounds:
            return []
        found = [[each.summary.to_json() for each in both] for both in self.rounds]
        return [
            _ratio(figure, [(a[figure.key], b[figure.key]) for a, b in found])
            for figure in figures(self.rounds[0][0].load.percentiles)
        ]

    def to_json(self, *, requests: bool) -> dict[str, Any]:
        """The ratios by figure, and every result."""
        return {
            "a": self.names[0],
            "b": self.names[1],
            "ratios": {each.figure.key: each.to_json() for each in self.ratios()},
            "rounds": [[each.to_json(requests=requests) for each in both] for both in self.rounds],
            "interrupted": self.interrupted,
        }


def _ratio(figure: Figure, rounds: Sequence[tuple[float | None, float | None]]) -> Ratio:
    a, b = ([each for each in side if each is not None] for side in zip(*rounds, strict=True))
    return Ratio(
        figure,
        median(a) if a else None,
        median(b) if b else None,
        tuple(of_b / of_a for of_a, of_b in rounds if of_a and of_b is not None),
    )


async def compare(
    names: tuple[str, str],
    turns: tuple[Turn, Turn],
    load: Load,
    rounds: int,
    on_turn: Callable[[int, str], None] = lambda number, name: None,
) -> Comparison:
    """Both sides get the same requests in a round, and other ones than in the round before.

    Where the task is cancelled between two loads, as while a side starts, the rounds before count.
    """
    found: list[tuple[Result, Result]] = []
    for number in range(rounds):
        asked = replace(load, seed=load.seed + number)
        results: dict[int, Result] = {}
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            on_turn(number, names[side])
            try:
                results[side] = await turns[side](asked)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or not found:
                    raise
                task.uncancel()
                return Comparison(names, tuple(found), interrupted=True)
            if results[side].ran.interrupted:
                return Comparison(names, tuple(found), interrupted=True)
        found.append((results[0], results[1]))
    return Comparison(names, tuple(found))


def comparison_table(found: Comparison) -> str:
    """A row for each figure: both medians, and the ratio with its range."""
    count = len(found.rounds)
    heading = f" Comparison over {count} round{'s' * (count != 1)} "
    names = [f"{side}: {name}" for side, name in zip("AB", found.names, strict=True)]
    lines = [heading.center(_WIDTH, "="), *names, _row("", "A", "B", "B/A", "range")]
    for each in found.ratios():
        if each.median is None:
            ratio, span = "–", ""
        else:
            ratio = f"{each.median:.3f}"
            span = f"{min(each.rounds):.3f} … {max(each.rounds):.3f}"
        a, b = ("–" if side is None else f"{side:.2f}" for side in (each.a, each.b))
        lines.append(_row(each.figure.name, a, b, ratio, span))
    return "\n".join([*lines, "=" * _WIDTH])


_WIDTH = 78


def _row(name: str, a: str, b: str, ratio: str, span: str) -> str:
    return f"{name:<34}{a:>11}{b:>11}{ratio:>8}  {span}".rstrip()
