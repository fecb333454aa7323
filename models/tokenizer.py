"""Text to tokens, and tokens to text as they come."""

from collections.abc import Sequence
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
        # Window [start, read) has been sent and is decoded again for context.
        self._start, self._read = 0, len(self._ids)
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
        for done, token in enumerate(ids, start=1):
            try:
                pieces.append(self._stream.step(self._rust, token) or "")
            except Exception:  # the library raises a bare one when a decoder rewrites the past
                self._stream = None
                self._start = 0
                self._read = len(self._ids) - len(ids) + done - 1
                return "".join(pieces) + self._push_window()
        return "".join(pieces)

    def _push_window(self) -> str:
        known = self._decode(self._ids[self._start : self._read]).rstrip(_BROKEN)
        text = self._decode(self._ids[self._start :])
        if len(text) <= len(known) or text.endswith(_BROKEN):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return text[len(known) :]

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text
