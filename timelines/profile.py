"""How long ops and steps take, measured or simulated, in the steps that count."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Ran(Protocol):
    """One op of one step as it ran: an `OpEvent` of a run, or a `Span` of a timeline."""

    @property
    def op(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def actor(self) -> str: ...

    @property
    def start_us(self) -> float: ...

    @property
    def end_us(self) -> float: ...


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


def op_times(ran: Iterable[Ran], steps: Collection[int]) -> dict[str, list[float]]:
    """µs of each op in each of these steps."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for each in ran:
        if each.step in steps:
            found[each.op].append(each.end_us - each.start_us)
    return dict(found)


def pacing_op(ran: Iterable[Ran], steps: Collection[int]) -> str | None:
    """The first op of a step on the actor that is busiest in these steps; None if none ran."""
    counted = [each for each in ran if each.step in steps]
    busy: defaultdict[str, float] = defaultdict(float)
    for each in counted:
        busy[each.actor] += each.end_us - each.start_us
    if not busy:
        return None
    busiest = max(busy, key=lambda actor: busy[actor])
    first = min(each.step for each in counted if each.actor == busiest)
    its = (each for each in counted if (each.actor, each.step) == (busiest, first))
    return min(its, key=lambda each: each.start_us).op


def step_times(ran: Collection[Ran], steps: Collection[int]) -> list[float]:
    """µs per step, for each of these steps that another of them follows."""
    return list(times_by_step(ran, steps).values())


def times_by_step(
    ran: Collection[Ran], steps: Collection[int], op: str | None = None
) -> dict[int, float]:
    """The same by step, in their order.

    From one start of `op` to its next: so a step takes what that op's actor works in it, and what
    the actor idles. None: of the pacing op.
    """
    op = pacing_op(ran, steps) if op is None else op
    at = {each.step: each.start_us for each in ran if each.op == op and each.step in steps}
    return {step: at[step + 1] - start for step, start in sorted(at.items()) if step + 1 in at}


def spreads(samples: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """The spread of each op that has samples."""
    return {op: Spread.of(figures) for op, figures in samples.items() if figures}
