"""Who goes next: the choices that make one interleaving out of all that a plan permits.

Each is deterministic, so a failure is replayed from its seed, or from what it held back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

from .interleaving import Interleaving

Boundary = Literal["begin", "end"]


class Schedule(Protocol):
    """Chooses one of the enabled actors; asked once for each event of one run."""

    def choose(self, run: Interleaving, enabled: Sequence[str]) -> str: ...


class Priorities:
    """Probabilistic concurrency testing: random priorities, lowered at a few random moments.

    The enabled actor of the highest priority goes on until a change point, where it becomes the
    lowest. A race that needs d ordering constraints is found with a probability of at least
    1 / (n k^(d − 1)) for n actors and k events (Burckhardt, Kothari, Musuvathi and Nagarakatte
    2010, "A randomized scheduler with probabilistic guarantees of finding bugs").
    """

    def __init__(self, seed: int, actors: Sequence[str], events: int) -> None:
        """`events`: about how many the run has; change points lie among them.

        A run that has more goes on under new priorities and change points, again and again.
        """
        self._random = Random(seed)
        self._actors, self._events = tuple(actors), max(1, events)
        self._draw()

    def _draw(self) -> None:
        random = self._random
        order = list(self._actors)
        random.shuffle(order)
        self._rank = {actor: rank for rank, actor in enumerate(order)}
        changes = random.randrange(2, max(3, min(24, self._events // 4)))
        self._changes = {random.randrange(self._events) for _ in range(changes)}
        self._event = 0

    def choose(self, run: Interleaving, enabled: Sequence[str]) -> str:
        if self._event == self._events:
            self._draw()
        chosen = min(enabled, key=self._rank.__getitem__)
        if self._event in self._changes:
            self._rank[chosen] = max(self._rank.values()) + 1
            chosen = min(enabled, key=self._rank.__getitem__)
        self._event += 1
        return chosen


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The reference order, but that one op of one step is held back as long as possible.

    Whatever the plan does not order after that op happens before it. So for waits whose records are
    in place, one such schedule for each op of a step finds every pair in which that op should
    have come first: the directed search needs no luck.
    """

    op: str
    step: int
    moment: Boundary = "begin"
    until: tuple[str, int] | None = None  # let go once this op has completed this step

    def choose(self, run: Interleaving, enabled: Sequence[str]) -> str:
        return min(enabled, key=lambda actor: self._key(run, actor))

    def _key(self, run: Interleaving, actor: str) -> tuple[bool, int, int]:
        upcoming = run.upcoming(actor)
        assert upcoming is not None, "an enabled actor has an event to make"
        op, step = upcoming
        held = (op, step) == (self.op, self.step)
        if held and self.moment == "end":
            held = run.running(actor)
        if held and self.until is not None:
            held = run.done[self.until[0]] < self.until[1]
        return (held, *reference_place(run, op, step))

    def __str__(self) -> str:
        what = f"{self.op} of step {self.step}"
        begun = "the end of " if self.moment == "end" else ""
        until = "as long as anything else can run"
        if self.until is not None:
            until = f"until {self.until[0]} of step {self.until[1]} is done"
        return f"the reference order, with {begun}{what} held back {until}"


@dataclass(slots=True)
class Replay:
    """Given actors one by one; where one of them cannot go, and after the last, the reference."""

    actors: Sequence[str]
    _event: int = 0

    def choose(self, run: Interleaving, enabled: Sequence[str]) -> str:
        wanted = self.actors[self._event] if self._event < len(self.actors) else None
        self._event += 1
        return wanted if wanted is not None and wanted in enabled else reference(run, enabled)


@dataclass(slots=True)
class Overrides:
    """The reference order but for some events, by number. For shrinking."""

    chosen: Mapping[int, str]
    _event: int = 0

    def choose(self, run: Interleaving, enabled: Sequence[str]) -> str:
        wanted = self.chosen.get(self._event)
        self._event += 1
        return wanted if wanted is not None and wanted in enabled else reference(run, enabled)


def reference(run: Interleaving, enabled: Sequence[str]) -> str:
    """The actor whose op stands first in the reference order."""

    def place(actor: str) -> tuple[int, int]:
        upcoming = run.upcoming(actor)
        assert upcoming is not None, "an enabled actor has an event to make"
        return reference_place(run, *upcoming)

    return min(enabled, key=place)


def reference_place(run: Interleaving, op: str, step: int) -> tuple[int, int]:
    vertex = run.vertices[op]
    return step + vertex.offset, vertex.position
