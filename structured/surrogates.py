"""Keeps surrogates out of masks: XGrammar takes them for characters, UTF-8 has none for them.

U+D800 to U+DFFF would be ED and a byte from A0 on. So what may come depends on the token before,
where one token ends between the two bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .bitmask import Words, row_allowing

_FIRST: Final = 0xED
_SECOND: Final = range(0xA0, 0xC0)


class Surrogates:
    """Which tokens would write a surrogate, after which others.

    Args:
        tokens: what each id of the vocabulary spells.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        size = len(tokens)
        inside = {index for index, token in enumerate(tokens) if _has_one(token)}
        second = {index for index, token in enumerate(tokens) if token[:1] and token[0] in _SECOND}
        self._opened = frozenset(
            index for index, token in enumerate(tokens) if token[-1:] == bytes([_FIRST])
        )
        """Tokens that end in the first byte of one, or of another character."""
        self._anywhere = _row_without(inside, size) if inside else None
        self._behind = _row_without(inside | second, size) if self._opened else None

    def narrow(self, row: Words, before: int | None) -> None:
        """Take out of a mask row `[W]` what would write a surrogate after the token `before`."""
        kept = self._behind if before in self._opened else self._anywhere
        if kept is not None:
            row &= kept

    def allow(self, token: int, before: int | None) -> bool:
        """Whether a token writes none after the token `before`."""
        kept = self._behind if before in self._opened else self._anywhere
        return kept is None or bool(kept[token // 32] >> (token % 32) & 1)


def _has_one(token: bytes) -> bool:
    at = token.find(_FIRST)
    while at >= 0:
        if at + 1 < len(token) and token[at + 1] in _SECOND:
            return True
        at = token.find(_FIRST, at + 1)
    return False


def _row_without(tokens: set[int], size: int) -> Words:
    return row_allowing((index for index in range(size) if index not in tokens), size)
