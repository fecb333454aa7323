"""How many replicas there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """`least` to `most` replicas, by the load.

    `drain_s`: seconds that one which is to end may take to finish what it works on; what is left
    then goes on elsewhere. `idle_s`: seconds of little load after which one ends.
    """

    least: int
    most: int
    drain_s: float = 30.0
    idle_s: float = 600.0

    @property
    def fixed(self) -> bool:
        """Whether the load changes nothing."""
        return self.least == self.most

    def __str__(self) -> str:
        return f"{self.least}" if self.fixed else f"{self.least} to {self.most}"
