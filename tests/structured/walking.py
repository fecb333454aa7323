"""Random outputs: walks along the masks of a matcher, token by token."""

from __future__ import annotations

import random

import numpy as np

from stepweave.structured.backend import Matcher
from stepweave.structured.bitmask import Words, words

from .conftest import STOPS, VOCAB


def allowed(row: Words) -> set[int]:
    """All ids whose bit is set, ids beyond the vocabulary included."""
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def next_tokens(matcher: Matcher, vocab: int = VOCAB) -> list[int]:
    row = np.full((1, words(vocab)), 0x55555555, dtype=np.int32)
    matcher.fill_window((), row)
    return sorted(allowed(row[0]))


def random_output(
    matcher: Matcher, rng: random.Random, limit: int = 120, hurry: float = 0.3
) -> list[int] | None:
    """The tokens of one finished output, without the stop; None if it was not finished in time.

    Args:
        matcher: at its start; stands at the end afterwards.
        rng: makes the walk.
        limit: tokens.
        hurry: how often the end is taken where it may be.
    """
    taken: list[int] = []
    while len(taken) < limit:
        tokens = next_tokens(matcher)
        free = [token for token in tokens if token not in STOPS]
        if len(free) < len(tokens) and (not free or rng.random() < hurry):
            assert matcher.accept(STOPS[0])
            assert matcher.terminated
            return taken
        token = rng.choice(free)
        assert matcher.accept(token)
        taken.append(token)
    return None
