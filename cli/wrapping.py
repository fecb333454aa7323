"""Text in the width of the terminal: paragraphs, labelled paragraphs, paths and tables."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

_TIED = "\N{NO-BREAK SPACE}"


def columns() -> int:
    """Of the terminal; 80 where there is none."""
    return max(60, shutil.get_terminal_size((80, 24)).columns)


def paragraph(text: str, width: int, indent: int = 0, label: str = "") -> list[str]:
    """The text wrapped; `label` stands before its first line, the rest hangs below the text."""
    lead = " " * indent + label
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIED, " ") for line in lines] or [lead.rstrip()]


def path(text: str, width: int, indent: int = 0, label: str = "") -> list[str]:
    """A path `a → b [why] → c [why]`, broken before arrows only."""
    steps = text.split(" → ")
    tied = [step.replace(" ", _TIED) for step in steps]
    return paragraph(f" →{_TIED}".join(tied), width, indent, label)


def whole_items(items: Sequence[str], width: int, indent: int = 0) -> list[str]:
    """`item · item · item` over as many lines as it takes, broken between items only."""
    tied = [item.replace(" ", _TIED) for item in items]
    return paragraph(" · ".join(tied), width, indent) if items else []


def table(
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    right: Sequence[int] = (),
    indent: int = 2,
) -> list[str]:
    """Columns padded to their widest cell, those in `right` flush right; lines cut at `width`."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]
        line = f"{' ' * indent}{'  '.join(cells)}".rstrip()
        lines.append(line if width is None or len(line) <= width else f"{line[: width - 1]}…")
    return lines
