"""Prompts of given lengths, made of plain words.

Which tokenizer a server has is not known here. A server says how many tokens a prompt had, so two
requests tell how many tokens a word takes on average, and what a chat template adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea kid body back"
)
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class WordCost:
    """How many tokens a word of `WORDS` takes on average, and what is added to every prompt."""

    per_word: float = 1.0
    added: float = 0.0

    @classmethod
    def between(cls, short: tuple[int, int], long: tuple[int, int]) -> WordCost:
        """From two prompts, each given as (words, tokens)."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        if per_word <= 0:
            return cls()
        return cls(per_word, max(0.0, short[1] - per_word * short[0]))

    def words(self, tokens: int) -> int:
        """So many words make about so many tokens, without what is added; at least one."""
        return max(1, round(tokens / self.per_word))


def words(count: int, *seed: int) -> str:
    """So many words drawn from the seed; every word comes about equally often.

    A longer text from the same seed begins with the shorter one.
    """
    return " ".join(_drawn(count, seed))


def _drawn(count: int, seed: tuple[int, ...]) -> Iterator[str]:
    draw = np.random.default_rng([each % (1 << 63) for each in seed])
    for first in range(0, count, len(WORDS)):
        order = draw.permutation(len(WORDS))[: count - first]
        yield from (WORDS[place] for place in order)
