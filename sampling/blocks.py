"""How many lines of the vocabulary's size are worked on at a time.

Temporaries of all lines of a long prompt would take several times the memory of its logits. Lines
do not depend on each other, so blocks of them give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ..backends import backend_of

HOST_SCORES = 1 << 17
"""Scores at a time on a host: temporaries stay in cache, and in memory that is there already."""

DEVICE_SCORES = 1 << 24
"""Scores at a time on a device: more launches than this makes would not be noticed, and a
temporary of float32 takes 64 MB."""


def blocks(lines: Tensor) -> Iterator[slice]:
    """Which of `lines[L, V]` to take at a time, in order: at least one block, if L is 0 of none.

    Raises nothing of its own.
    """
    count, vocab = lines.shape
    scores = HOST_SCORES if backend_of(lines.device).on_host else DEVICE_SCORES
    height = max(1, scores // max(1, vocab))
    for start in range(0, max(1, count), height):
        yield slice(start, min(start + height, count))
