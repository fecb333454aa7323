"""Small pieces of Markdown that every generated section is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

BLOCK = re.compile(r"<!-- written: ([^>\n]*) -->\n.*?<!-- until here -->", re.S)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; `|` inside a cell is escaped, and a line break becomes a space."""
    lines = [tuple(head), ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def code(*names: str) -> str:
    """Names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def first_sentence(doc: str | None) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())


def filled(page: str, write: Callable[[str, str], str]) -> str:
    """`page` with the text between its markers written anew; the prose around them stays.

    `write(what, about)` gets the two words of a marker, as in `<!-- written: options run -->`.
    """

    def block(match: re.Match[str]) -> str:
        what, _, about = match[1].partition(" ")
        return f"<!-- written: {match[1]} -->\n\n{write(what, about)}\n\n<!-- until here -->"

    return BLOCK.sub(block, page)
