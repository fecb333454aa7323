"""A stretch of a timeline for terminals: one lane per actor, in proportion to time."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase

from ..timelines.timeline import Span, Timeline
from .words import clip


def timeline_lanes(timeline: Timeline, steps: range, *, width: int = 80) -> str:
    """What each actor does from the begin of the first of these steps to that of the one after
    the last. An op too short for its name is a letter of the key.

    Nothing is stretched, so an op may be too short for a letter too: then a neighbour has it.
    """
    inside = [span for span in timeline.events if span.step in steps]
    if not inside:
        return ""
    first = min(span.start_us for span in inside)
    after = [span.start_us for span in timeline.events if span.step == steps.stop]
    last = min(after, default=max(span.end_us for span in inside))
    spans = [s for s in timeline.events if s.end_us > first and s.start_us < last]
    margin = min(max(len(actor) for actor in timeline.actors) + 1, width // 4)
    scale = (width - margin) / ((last - first) or 1.0)
    ops = dict.fromkeys(span.op for span in timeline.events)
    letters = dict(zip(ops, [*ascii_lowercase, *ascii_uppercase, *"·" * len(ops)], strict=False))
    lines, spelled = [], dict.fromkeys([""], True)
    for actor in timeline.actors:
        row = [span for span in spans if span.actor == actor]
        drawn, seen = _row(row, letters, first, scale, width - margin)
        spelled.update(dict.fromkeys(seen, True))
        lines.append((clip(actor, margin - 1).ljust(margin) + drawn).rstrip())
    lines.append(_axis(timeline, steps, first, scale, margin, width))
    key = [f"{letters[op]} {op}" for op in ops if op in spelled]
    return "\n".join([*lines, *_wrapped(key, margin, width)]) + "\n"


def _row(
    spans: Sequence[Span], letters: dict[str, str], first: float, scale: float, width: int
) -> tuple[str, list[str]]:
    """One lane, and the ops that are letters in it."""
    cells, spelled, free = [" "] * width, [], 0
    for span in spans:
        start = max(free, int(max(0.0, span.start_us - first) * scale))
        end = min(width, max(start + 1, round((span.end_us - first) * scale)))
        if span.end_us <= span.start_us or start >= end:
            continue
        text = _text(span, letters[span.op], end - start)
        if letters[span.op] == text[0]:
            spelled.append(span.op)
        cells[start:end] = text
        free = end
    return "".join(cells), spelled


def _text(span: Span, letter: str, width: int) -> str:
    name = span.op.replace(".host", "").replace(".device", "")
    whole = f"{name} {span.step}"
    if width >= len(whole) + 2:
        return f"├{whole.ljust(width - 2, '─')}┤"
    return letter if width == 1 else f"{letter}{'─' * (width - 2)}┤"


def _axis(
    timeline: Timeline, steps: range, first: float, scale: float, margin: int, width: int
) -> str:
    """When each step begins, in µs since the first of them."""
    line = "µs".ljust(margin)
    for step in steps:
        begins = min(s.start_us for s in timeline.events if s.step == step)
        place, label = margin + int((begins - first) * scale), f"╵{begins - first:,.0f}"
        if len(line) <= place and place + len(label) <= width:
            line = line.ljust(place) + label
    return line


def _wrapped(items: Sequence[str], margin: int, width: int) -> list[str]:
    lines, line = [], "key".ljust(margin)
    for item in items:
        lead = "" if len(line) == margin else " · "
        if len(line) + len(lead) + len(item) > width and lead:
            lines.append(line)
            line, lead = " " * margin, ""
        line += lead + item
    return [*lines, line] if items else []
