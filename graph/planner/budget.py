"""Effort, counted so that a search ends at the same point on every machine."""

from __future__ import annotations

from dataclasses import dataclass

CALL = 4000  # what calling numpy takes, in cells


class Spent(Exception):
    """The search has used its budget; what it found so far stands, unproved."""


@dataclass
class Budget:
    """What may still be spent: nodes of a search tree, and cells of matrices computed."""

    nodes: int = 1 << 62
    cells: int = 1 << 62

    def take(self, nodes: int = 1) -> None:
        """Some nodes. Raises `Spent` where none are left."""
        if self.nodes <= 0:
            raise Spent
        self.nodes -= nodes

    def compute(self, cells: int) -> None:
        """Some cells. Raises `Spent` where none are left."""
        if self.cells <= 0:
            raise Spent
        self.cells -= cells
