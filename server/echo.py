"""Prompts that answers of /v1/completions begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .token_texts import Offsets

if TYPE_CHECKING:
    from ..requests.request import TokenLogprob
    from .token_texts import Listed, TokenTexts


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt: its text as it was given, or as its tokens write it, and its tokens."""

    text: str
    token_ids: Sequence[int]

    @classmethod
    def of(cls, prompt: str | Sequence[int], token_ids: Sequence[int], texts: TokenTexts) -> Echo:
        """`token_ids` are those that the model reads."""
        return cls(prompt if isinstance(prompt, str) else texts.written(token_ids), token_ids)

    def logprobs(self, found: Sequence[TokenLogprob], top: int, texts: TokenTexts) -> Listed:
        """Those of its tokens, `found` from the second on: of the first there is none.

        A text that is not what its tokens write, as where the model's own format is put around it,
        ends where it does for each token behind that.
        """
        offsets = Offsets(texts.begins_at(self.token_ids))
        offsets.next(texts.writes(self.token_ids[0]))
        rest = texts.listed(found, top, offsets)
        return {
            "tokens": [texts.name(self.token_ids[0]), *rest["tokens"]],
            "token_logprobs": [None, *rest["token_logprobs"]],
            "top_logprobs": [None, *rest["top_logprobs"]],
            "text_offset": [
                min(max(each, 0), len(self.text)) for each in (0, *rest["text_offset"])
            ],
        }
