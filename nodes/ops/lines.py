"""In which line of what only some rows of a step have each place of a row finds its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def number(whose: Sequence[int], lines: npt.NDArray[np.int64]) -> None:
    """Write to `lines[S, W]` which line is that of each place: the rows of `whose`, no row twice,
    have one after the other, all others none, −1. Raises nothing.
    """
    width = lines.shape[1]
    lines[:] = -1
    lines[list(whose)] = np.arange(len(whose) * width).reshape(-1, width)
