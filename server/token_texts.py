"""Tokens as answers name them beside their log-probabilities: text, and bytes."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..requests.request import LEAST_LOGPROB, TokenLogprob
from ..structured.vocabulary import tokenizer_info

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Listed = dict[str, list[Any]]
"""By its key a list with an entry for each token."""


class TokenTexts:
    """What each token of a vocabulary spells. The first use takes a while for a large one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def spelled(self) -> Sequence[bytes]:
        """The bytes of each token id; a control token spells its own name."""
        known = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        end = self._tokenizer.eos_token_id
        stops = (end if isinstance(end, int) else 0,)  # the library wants one; it changes nothing
        spelled = list(tokenizer_info(self._tokenizer, known, stops).decoded_vocab)
        for index, token in self._tokenizer.added_tokens_decoder.items():
            if index < known and not spelled[index]:
                spelled[index] = token.content.encode()
        return spelled

    def spells(self, token: int) -> bytes:
        """Its bytes; none for an id that the tokenizer does not know."""
        return self.spelled[token] if token < len(self.spelled) else b""

    @cached_property
    def _control(self) -> frozenset[int]:
        """Tokens that texts never have."""
        added = self._tokenizer.added_tokens_decoder.items()
        return frozenset(index for index, token in added if token.special)

    def hides(self, token: int) -> bool:
        """Whether texts never have it."""
        return token in self._control

    def writes(self, token: int) -> bytes:
        """What it adds to a text: its bytes, but for control tokens."""
        return b"" if self.hides(token) else self.spells(token)

    def name(self, token: int) -> str:
        """Its text, or `bytes:\\xe2\\x82` for a part of a character: names must not coincide."""
        spelled = self.spells(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def for_chat(self, found: Iterable[TokenLogprob], top: int) -> bytes:
        """`logprobs` of a choice of /v1/chat/completions, as JSON."""
        return json.dumps({"content": self.told(found, top), "refusal": None}).encode()

    def told(self, found: Iterable[TokenLogprob], top: int) -> list[dict[str, object]]:
        """An object for each token, as chats and responses have it."""
        return [
            {
                **self._chat_token(each.token, each.logprob),
                "top_logprobs": [self._chat_token(*best) for best in each.top[:top]],
            }
            for each in found
        ]

    def written(self, tokens: Sequence[int]) -> str:
        """The text that tokens write, as the tokenizer has it."""
        text = self._tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def begins_at(self, tokens: Sequence[int]) -> int:
        """Where in their text the first of these tokens begins: -1 where the tokenizer drops the
        first space of a text, else 0.
        """
        spelled = b"".join(map(self.writes, tokens)).decode(errors="replace")
        return -1 if spelled == " " + self.written(tokens) else 0

    def listed(self, found: Sequence[TokenLogprob], top: int, offsets: Offsets) -> Listed:
        """`logprobs` of a choice of /v1/completions, of the tokens that follow those before."""
        return {
            "tokens": [self.name(each.token) for each in found],
            "token_logprobs": [_finite(each.logprob) for each in found],
            "top_logprobs": [self._best(each.top[:top]) for each in found],
            "text_offset": [offsets.next(self.writes(each.token)) for each in found],
        }

    def _best(self, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        """By their names; of several tokens of one name the most probable, which is the first."""
        found: dict[str, float] = {}
        for token, value in top:
            found.setdefault(self.name(token), _finite(value))
        return found

    def _chat_token(self, token: int, logprob: float) -> dict[str, object]:
        spelled = self.spells(token)
        return {
            "token": self.name(token),
            "logprob": _finite(logprob),
            "bytes": list(spelled),
        }


class Offsets:
    """At which character of a text each of its tokens begins.

    A token that begins within a character counts from where that character does; behind one that
    is never finished, from behind what stands for it.
    """

    def __init__(self, first: int = 0) -> None:
        """`first`: characters that the text has before."""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._characters = first

    def next(self, written: bytes) -> int:
        """Where the next token begins, which writes these bytes."""
        pending, _ = self._decoder.getstate()
        if pending and written and written[0] & 0xC0 != 0x80:  # it continues no character
            self._characters += len(self._decoder.decode(b"", final=True))
            self._decoder.reset()
        found = self._characters
        self._characters += len(self._decoder.decode(written))
        return found


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
