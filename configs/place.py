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
    def of(cls, mark: Mark) -> Line:
        """The line of a mark; 0 for a mark without one, as of a setting."""
        line = cls(mark.line or 0)
        line.mark = mark
        return line
