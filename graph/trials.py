"""Comparing many slot choices at once: can it be ordered, at the given period, with how many waits?

One choice adds some orders to a graph that is otherwise the same. The answers need only
shortest paths, so a batch of choices is one stack of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from .paths import FAR, HOP, Weights, closure, ordered, weight, with_empty
from .period import Delay, Scaled, delays, slowest_cycle
from .events import Event
from .waits import Frame

Ints = npt.NDArray[np.int64]
UNLIMITED = 0  # in a choice: this group has as many slots as it likes
Slot = tuple[int, int, int]  # an order needed at distance K + the third entry


@dataclass(frozen=True)
class Trials:
    """A frame with its fixed requirements, to which slot choices are added."""

    frame: Frame
    fixed: Weights  # the nearest fixed requirement between any two ops
    slots: tuple[tuple[Slot, ...], ...]  # for each group
    period: Fraction  # the least: that of unlimited slots
    gains: Weights  # ratio · distance − duration of free edges and fixed requirements, at `period`
    after: Weights  # (source) -> duration before what waits for it, twice: scaled, by `via`

    def candidates(self, choices: Ints) -> tuple[Weights, Weights]:
        raise NotImplementedError
