"""Text to tokens, and tokens to text as they come."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .causal_lm import from_local_then_hub

_BROKEN = "\N{REPLACEMENT CHARACTER}"


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model: found like the model itself (`CausalLM.load`)."""
    tokenizer = from_local_then_hub(AutoTokenizer, name_or_path)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


@dataclass(frozen=True)
class _Window:
    """The tokens from `start` on are decoded anew, so that the new ones have context.

    `start` and `clean` are places where no character is cut; the next window starts at `clean`.
    """

    start: int
    clean: int
    sent: int  # characters of the window's text that were sent


class StreamDecoder:
    """Text of a growing token sequence, in pieces that never split a character.

    A token may end in the middle of a UTF-8 character, so text is held back until it is whole.
    All pieces, that of `finish` included, concatenate to `tokenizer.decode(ids,
    skip_special_tokens=True, clean_up_tokenization_spaces=False)`. With `prompt_ids` they are
    what the ids add to the text of the prompt: some tokenizers drop the first space of a text,
    and the first space of an output is not that.

    The tokenizers library's own stream does the work where it can: decoding from Python takes
    tens of microseconds per token, and every row of every step needs it.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt_ids or ())
        self._sent = len(self._decode(self._ids).rstrip(_BROKEN)) if self._ids else 0
        self._window = _Window(start=0, clean=0, sent=self._sent)
        self._rust: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._stream: Any = None
        if isinstance(self._rust, Tokenizer) and not self._ids:
            self._stream = DecodeStream(skip_special_tokens=True)
        elif isinstance(self._rust, Tokenizer) and self._sent == len(self._decode(self._ids)):
            self._stream = DecodeStream(ids=self._ids, skip_special_tokens=True)

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; empty while a character is unfinished."""
        self._ids.extend(ids)
        piece = self._push_stream(ids) if self._stream is not None else self._push_window()
        self._sent += len(piece)
        return piece

    def finish(self) -> str:
        """What was held back, with a replacement character for bytes that end in mid-character."""
        piece = self._decode(self._ids)[self._sent :]
        self._sent += len(piece)
        return piece

    def _push_stream(self, ids: Sequence[int]) -> str:
        pieces = []
        for token in ids:
            try:
                pieces.append(self._stream.step(self._rust, token) or "")
            except Exception:  # the library raises a bare one when a decoder rewrites the past
                self._stream = None
                sent = "".join(pieces)
                self._window = _Window(start=0, clean=0, sent=self._sent + len(sent))
                return sent + self._push_window()
        return "".join(pieces)

    def _push_window(self) -> str:
        window = self._window
        text = self._decode(self._ids[window.start :])
        if len(text) <= window.sent or text.endswith(_BROKEN):
            return ""
        start, clean = window.clean, len(self._ids)
        self._window = _Window(start, clean, sent=len(self._decode(self._ids[start:])))
        return text[window.sent :]

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text
