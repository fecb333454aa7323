"""Placing labels in rows so that no two overlap, and each stays near what it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_APART = 8.0


@dataclass(frozen=True)
class Note:
    """A label that belongs at `x` in a gap between lanes; only a `needed` one makes it grow."""

    gap: int
    x: float
    width: float
    words: str
    needed: bool
    kind: str
    data: Mapping[str, str]  # attributes that say whose label it is


@dataclass
class _Row:
    taken: list[tuple[float, float]] = field(default_factory=list)

    def free(self, left: float, right: float) -> bool:
        return all(right + _APART <= a or b + _APART <= left for a, b in self.taken)


def place_notes(
    notes: Sequence[Note], gaps: int, left: float, right: float
) -> tuple[dict[int, tuple[float, int]], list[int]]:
    """(x, row) of each label that is shown, by index; and the number of rows of each gap."""
    rows: list[list[_Row]] = [[] for _ in range(gaps)]
    placed: dict[int, tuple[float, int]] = {}
    for index in sorted(range(len(notes)), key=lambda k: not notes[k].needed):
        note = notes[index]
        if note.needed:
            rows[note.gap].append(_Row())  # the last row is free, so there is always a place
        for row, taken in enumerate(rows[note.gap]):
            spots = _spots(note, left, right)
            found = next((x for x in spots if taken.free(x, x + note.width)), None)
            if found is not None:
                taken.taken.append((found, found + note.width))
                placed[index] = (found, row)
                break
        rows[note.gap] = [row for row in rows[note.gap] if row.taken]
    return placed, [len(each) for each in rows]


def _spots(note: Note, left: float, right: float) -> list[float]:
    """Beside the arrow first, then over it, then a little farther; all within the picture."""
    x, width = note.x, note.width
    wanted = [x + 7, x - width - 7, x - width / 2, x + 30, x - width - 30]
    return [max(left, min(at, right - width)) for at in wanted]
