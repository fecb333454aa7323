"""Text to tokens, and tokens to text as they come."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..graph.errors import StepweaveError, shortly
from .errors import ModelError, ModelNotFound
from .source import from_local_then_hub, located, quiet

_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""Of which the folder of nearly every tokenizer has one; few are made of their settings alone."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model: found like the model itself (`CausalLM.load`).

    Raises `ModelNotFound` where there is none, and `ModelError` for one that is broken.
    """
    name = located(name_or_path)
    try:
        with quiet():
            tokenizer = from_local_then_hub(AutoTokenizer, name)
            works = isinstance(tokenizer, PreTrainedTokenizerBase) and (
                tokenizer.decode(tokenizer("a")["input_ids"]) or _has_words(tokenizer)
            )
    except StepweaveError:
        raise
    except Exception as error:  # of the tokenizers library, and of each class's own code
        raise _no_tokenizer(name) or ModelError(
            f"{name}: its tokenizer cannot be loaded ({shortly(error)}); copy tokenizer.json and "
            "tokenizer_config.json anew, from where its weights are from"
        ) from error
    if not works:
        raise _no_tokenizer(name) or ModelError(
            f"{name}: its tokenizer has no tokens but special ones, so no vocabulary; copy "
            "tokenizer.json anew, from where its weights are from"
        )
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def _has_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether it has tokens of texts, be it of no letter, as of genes or of chess."""
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    return not special.issuperset(tokenizer.get_vocab())


def _no_tokenizer(name: str) -> ModelNotFound | None:
    """What to say of a folder without any file that a tokenizer is made of."""
    folder = Path(name)
    if not folder.is_dir() or any((folder / each).is_file() for each in _FILES):
        return None
    return ModelNotFound(
        f"{name} has no tokenizer (none of {', '.join(_FILES)}); copy it there, from where the "
        "model's weights are from"
    )


def most_characters(tokenizer: PreTrainedTokenizerBase, tokens: int) -> int:
    """Characters that so many tokens spell at most: a longer text need not be encoded to be
    refused.
    """
    return tokens * max(map(len, tokenizer.get_vocab()), default=1)


def too_long(what: str, characters: int, most: int) -> str:
    """Why a text is refused that exceeds `most_characters`."""
    return f"{what} has {characters} characters; the context holds no more than {most}"


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
    skip_special_tokens=True, clean_up_tokenization_spaces=False)`; of bytes that are no UTF-8 some
    tokenizers make less then, once they see the bytes around. With `prompt_ids` they are
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
        text = self._decode(self._ids) if self._ids else ""
        self._sent = len(text if self._is_whole(text) else text.rstrip(_BROKEN))
        self._window = _Window(start=0, clean=0, sent=self._sent)
        self._rust: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._stream: Any = None
        if isinstance(self._rust, Tokenizer) and not self._ids:
            self._stream = DecodeStream(skip_special_tokens=True)
        elif isinstance(self._rust, Tokenizer) and not text.endswith(_BROKEN):
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

    def _is_whole(self, text: str) -> bool:
        """Whether no character is cut at the end of the ids, which decode to this text: also where
        they spell a replacement character, as the ids of a text may.
        """
        if not text.endswith(_BROKEN):
            return True
        spelled = self._tokenizer.encode(text, add_special_tokens=False)
        return list(spelled[-3:]) == self._ids[-3:]

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
