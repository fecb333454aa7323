"""The line of a part of a config, which remembers its file.

A pipeline is made of several files, and nodes carry a line number alone: two nodes of different
files may stand in the same line.
"""

from __future__ import annotations

from .errors import Mark


class Line(int):
    """A line number with the whole mark that it belongs to."""

    mark: Mark

    @classmethod
    def of(cls, mark: Mark) -> Line | None:
        """The line of a mark; None for a mark without one, as of a setting."""
        if mark.line is None:
            return None
        line = cls(mark.line)
        line.mark = mark
        return line
