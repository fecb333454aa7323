"""A letter for each critical cycle that a table mentions, and what the letters stand for."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_uppercase

from ..graph.answers.whatif import bound_by
from ..graph.plan import Placed, Plan
from .diff import cycle_words
from .wrapping import paragraph


class Letters:
    """In order of appearance; two cycles are the same if their ops and distances are."""

    def __init__(self) -> None:
        self._known: dict[frozenset[Placed], str] = {}
        self._said: list[str] = []

    def of(self, cycle: tuple[Placed, ...], plan: Plan) -> str:
        """The letter of a cycle of this plan's ops."""
        key = frozenset(cycle)
        if key not in self._known:
            place = len(self._known)
            self._known[key] = ascii_uppercase[place % 26] * (1 + place // 26)
            actors = bound_by(replace(plan, critical_cycle=cycle))
            self._said.append(f"{actors}: {cycle_words(cycle)}" if cycle else actors)
        return self._known[key]

    def legend(self, width: int) -> list[str]:
        lines: list[str] = []
        for letter, said in zip(self._known.values(), self._said, strict=True):
            lines += paragraph(said, width, 2, f"{letter}  ")
        return ["", *lines] if lines else []
