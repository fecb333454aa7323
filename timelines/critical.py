"""The critical cycle of a timeline: the chain of ops that held each other, folded.

What held an op is followed back from the last steady step to the first. In a simulated run at
constant costs that chain goes round one cycle, the one that sets the period. In a real run it
leaves the cycle now and then; what it mostly goes round is the cycle, if there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..graph.plan import Placed
from .analysis import paced_by
from .timeline import Span, Timeline

MOSTLY = 0.5
"""The least share of the chain's time that a cycle covers to be called the critical one."""


@dataclass(frozen=True)
class Cycle:
    """Ops that held each other in turn, as in `Plan.critical_cycle`, and how long it took.

    `share`: the part of the chain's time that was spent going round it. `us` and `late_us` are
    means per step: time in its ops and in hand-overs between them, while it was gone round.
    """

    ops: tuple[Placed, ...]  # (op, distance to the next)
    share: float
    rounds: int
    us: float
    late_us: float

    @property
    def distance(self) -> int:
        """How many steps one round takes."""
        return sum(distance for _, distance in self.ops)

    @property
    def repeats(self) -> bool:
        """Whether it is what holds the run, rather than the most common of many reasons."""
        return self.rounds >= 2 and self.share >= MOSTLY

    def __str__(self) -> str:
        hops = [f"{op} →" if d == 0 else f"{op} →({d:+d})" for op, d in self.ops]
        return " ".join([*hops, self.ops[0][0]])


def chain(timeline: Timeline) -> tuple[Span, ...]:
    """The chain back through the steady steps, from the last op of the busiest actor in them."""
    steady = timeline.steady
    if not steady:
        return ()
    actor = timeline.span(paced_by(timeline), steady.start).actor
    last = [span for span in timeline.on(actor) if span.step in steady][-1]
    return tuple(span for span in timeline.path_to(last) if span.step in steady)


def cycle(timeline: Timeline) -> Cycle | None:
    """The cycle that the chain goes round most; None where it never comes back to an op.

    The chain is cut wherever it comes to one op. Of all ops the one is taken of which the most
    frequent piece covers the most time, and among these the shortest piece: so a cycle that
    passes an op twice is found whole.
    """
    path = chain(timeline)
    if len(path) < 2:
        return None
    whole = path[-1].start_us - path[0].start_us
    best: tuple[float, int, str, Cycle] | None = None
    for op in dict.fromkeys(span.op for span in path):
        found = _folded(path, op, whole)
        if found is not None:
            rank = (-round(found.share, 6), len(found.ops), op)
            if best is None or rank < best[:3]:
                best = (*rank, found)
    return None if best is None else best[3]


def _folded(path: Sequence[Span], op: str, whole: float) -> Cycle | None:
    """The most frequent piece of the path between two visits of an op."""
    visits = [index for index, span in enumerate(path) if span.op == op]
    pieces = [path[a : b + 1] for a, b in pairwise(visits)]
    if not pieces:
        return None
    rounds = Counter(map(_shape, pieces))
    spent: dict[tuple[Placed, ...], float] = dict.fromkeys(rounds, 0.0)
    for piece in pieces:
        spent[_shape(piece)] += _time(piece)
    shape = max(rounds, key=lambda each: (spent[each], rounds[each]))
    steps = rounds[shape] * sum(distance for _, distance in shape)
    if steps <= 0:
        return None
    late = sum(span.late_us for piece in pieces if _shape(piece) == shape for span in piece[1:])
    begun, ended = path[: visits[0] + 1], path[visits[-1] :]  # perhaps parts of a round
    partly = 0.0
    if visits[0] <= len(shape) and shape[len(shape) - visits[0] :] == _shape(begun):
        partly += _time(begun)
    if shape[: len(ended) - 1] == _shape(ended):
        partly += _time(ended)
    return Cycle(
        ops=_turned(shape),
        share=(spent[shape] + partly) / whole if whole else 0.0,
        rounds=rounds[shape],
        us=(spent[shape] - late) / steps,
        late_us=late / steps,
    )


def _time(piece: Sequence[Span]) -> float:
    return piece[-1].start_us - piece[0].start_us


def _shape(piece: Sequence[Span]) -> tuple[Placed, ...]:
    return tuple((a.op, b.step - a.step) for a, b in pairwise(piece))


def _turned(shape: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """The same cycle from a place that does not depend on where it was cut."""
    return min(shape[at:] + shape[:at] for at in range(len(shape)))
