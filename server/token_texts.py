"""Tokens as answers name them beside their log-probabilities: text, and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ..requests.request import TokenLogprob
from ..structured.vocabulary import tokenizer_info

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST = -9999.0
"""Stands for a probability of zero: JSON has no infinity."""


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

    def for_completion(self, found: Sequence[TokenLogprob], top: int, offset: int) -> bytes:
        """`logprobs` of a choice of /v1/completions; its tokens begin at character `offset`."""
        names = [self.name(each.token) for each in found]
        offsets: list[int] = []
        for each in found:
            offsets.append(offset)
            offset += len(self.spells(each.token).decode(errors="ignore"))
        return json.dumps(
            {
                "tokens": names,
                "token_logprobs": [_finite(each.logprob) for each in found],
                "top_logprobs": [
                    {self.name(token): _finite(value) for token, value in each.top[:top]}
                    for each in found
                ],
                "text_offset": offsets,
            }
        ).encode()

    def length(self, tokens: Iterable[int]) -> int:
        """Characters that these tokens spell, as `text_offset` counts them."""
        return sum(len(self.spells(token).decode(errors="ignore")) for token in tokens)

    def _chat_token(self, token: int, logprob: float) -> dict[str, object]:
        spelled = self.spells(token)
        return {
            "token": self.name(token),
            "logprob": _finite(logprob),
            "bytes": list(spelled),
        }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
