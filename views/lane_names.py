"""How the names of ops are written in the boxes of a lane, so that each can be read in print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..graph.plan import Plan
from .drawn import short
from .svg import text, text_width

LOW, TALL = 44.0, 112.0  # heights of a box
LEAST = 17.0  # width of a box: a line of upright text
_UPRIGHT, _LINE = 11, 13  # size of upright text; height of a line of the other


@dataclass(frozen=True)
class Label:
    """How the name of an op is written in its box."""

    lines: tuple[str, ...]
    upright: bool = False

    @property
    def width(self) -> float:
        return 13.0 if self.upright else max(text_width(line, 12) for line in self.lines)


def op_labels(rooms: Mapping[str, float], steps: int) -> tuple[dict[str, Label], dict[str, str]]:
    """How each op is labelled in the width of its box; and the key for names that do not fit."""
    labels: dict[str, Label] = {}
    letters: dict[str, str] = {}
    for op, room in rooms.items():
        label = _fit(short(op), steps - 1, room)
        if label is None:
            letters[op] = f"{len(letters) + 1}"
            label = Label((f"[{letters[op]}]",), upright=True)
        labels[op] = label
    return labels, letters


def _fit(name: str, last_step: int, room: float) -> Label | None:
    """Across in up to three lines, else upright; None where the name is too long for both."""
    for words in ([f"{name} {last_step}"], [*re.findall(r"[^._]+[._]?", name), f" {last_step}"]):
        lines = _wrapped(words, room - 6)
        if lines and len(lines) * _LINE <= LOW - 4:
            return Label(lines)
    if text_width(f"{name} {last_step}", _UPRIGHT) <= TALL - 8:
        return Label((f"{name} {last_step}",), upright=True)
    return None


def _wrapped(words: list[str], room: float) -> tuple[str, ...]:
    """Lines no wider than `room`, broken between words; none where a word is wider."""
    lines = [""]
    for word in words:
        if text_width(word.strip(), 12) > room:
            return ()
        if text_width(lines[-1] + word, 12) <= room:
            lines[-1] += word
        else:
            lines.append(word.strip())
    return tuple(lines)


def lane_heights(plan: Plan, labels: Mapping[str, Label]) -> dict[str, float]:
    """Of the boxes of each actor: as high as its longest upright name."""
    return {
        actor: max(
            [LOW]
            + [
                text_width(labels[op].lines[0], _UPRIGHT) + 8
                for op, _ in program
                if labels[op].upright
            ]
        )
        for actor, program in plan.actors.items()
    }


def written(label: Label, last_step: int, step: int, x: float, y: float) -> Iterator[str]:
    """The texts of one step's box around its middle; the label was made for the last step."""
    lines = [*label.lines[:-1], re.sub(rf"{last_step}$", str(step), label.lines[-1])]
    if label.upright:
        yield text(
            x + 4, y, lines[0], size=_UPRIGHT, anchor="middle", class_="on-step", upright=True
        )
        return
    for k, line in enumerate(lines):
        yield text(
            x, y + 4 + _LINE * (k - (len(lines) - 1) / 2), line, anchor="middle", class_="on-step"
        )
