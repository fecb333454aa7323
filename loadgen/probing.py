"""The first requests of a benchmark: how many tokens the words of a prompt have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .ask import Ask
from .outcome import Outcome
from .words import WordCost, words

_WORDS = (32, 96)


async def word_cost(answer: Callable[[Ask], Awaitable[Outcome]]) -> WordCost | None:
    """Two prompts, asked for one token each, tell; None if their tokens are not counted."""
    sizes: list[tuple[int, int]] = []
    for count in _WORDS:
        outcome = await answer(Ask(f"first, {count} words", words(count, count), max_tokens=1))
        if not outcome.prompt_tokens:
            return None
        sizes.append((count, outcome.prompt_tokens))
    return WordCost.between(sizes[0], sizes[1])
