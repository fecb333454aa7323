"""The text that a grammar leaves no choice about, as the tokens that a model would write it in.

A grammar forces text, not tokens: between `{"name": "` and its end there is one text, but as many
ways to cut it into tokens as the vocabulary allows. The model is used to one of them, that of its
tokenizer. So the text is tokenized as any text is, and offered as drafts: where the model would cut
it otherwise, the target says so, and nothing is lost but the drafts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .backend import Matcher
from .trees import walk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT = 4096
"""Texts whose tokens are remembered: the same keys come in every output."""

LONGEST = 1024
"""Bytes of a forced text that are read: more than the drafts of a window have."""


@runtime_checkable
class ForcingMatcher(Protocol):
    """A matcher that knows what its grammar forces."""

    def forced_text(self) -> bytes:
        """The bytes that must come next; none where there is a choice, or the grammar has ended.

        Raises:
            MatcherFailure: the library failed.
        """
        ...


class ForcedTokens:
    """The tokens of forced texts, by a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._kept: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, matcher: Matcher) -> tuple[int, ...]:
        """The tokens of what must come next. Raises `MatcherFailure`."""
        asked = getattr(matcher, "forced_text", None)
        text: bytes = b"" if asked is None else asked()[:LONGEST]
        if not text:
            return ()
        if text in self._kept:
            self._kept.move_to_end(text)
        else:
            self._kept[text] = self._encoded(text)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[text]

    def _encoded(self, text: bytes) -> tuple[int, ...]:
        try:
            whole = text.decode()
        except UnicodeDecodeError as error:  # up to where a choice lies inside of a character
            whole = text[: error.start].decode()
        found = tuple(self._tokenizer.encode(whole, add_special_tokens=False))
        # Of a text that was cut the last token may be the beginning of another.
        return found[:-1] if len(text) == LONGEST else found

    def before(self, matcher: Matcher, last: int) -> tuple[int, ...]:
        """What had to come where `last` came, the last token that the matcher has accepted.

        The matcher stands where it stood when this returns. Raises `MatcherFailure`.
        """
        matcher.rollback(1)
        found = self.of(matcher)
        matcher.accept(last)
        return found

    def in_window(
        self, matcher: Matcher, drafts: Sequence[int], parents: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """What must come next, and what after each draft; nothing after one that is not allowed.

        `parents`: of each draft, the place before its own, as `trees.walk` says. The matcher stands
        where it stood when this returns or raises. Raises `MatcherFailure`.
        """
        found: list[tuple[int, ...]] = [()] * (len(drafts) + 1)
        found[0] = self.of(matcher)

        def note(place: int) -> bool:
            found[place] = self.of(matcher)
            return True

        walk(matcher, drafts, parents, note)
        return found
