"""A tokenizer of real size, made from nothing: the same on every machine.

Bytes, numbers of up to three digits, what JSON is written with, usual names of fields, and made-up
words with and without a space before them fill it up. What a mask costs depends on how many tokens
may stand in a string, and how they share their beginnings; both are like those of a trained
vocabulary, its frequencies are not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .networks import EOS

EOS_TEXT = "<eos>"
ONSETS = ("b", "br", "c", "ch", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
CODAS = ("", "l", "m", "n", "r", "s", "t", "nd", "st")
JSON_PIECES = (
    *('{"', '":', '":"', '","', '"}', '"},', '"],', '["', '":[', '":{', "},{", "true", "false"),
    *(',"', '"]', "null", "},", "],", '":[{"', '":-', "}}", "]}"),
)
NAMES = (
    *("name", "age", "city", "job", "about", "label", "score", "field", "title", "summary"),
    *("text", "id", "type", "value", "date", "item", "list", "key", "count", "price", "email"),
    *("positive", "negative", "neutral", "address", "number", "status", "user", "data", "code"),
)


def pieces(count: int) -> list[str]:
    """`count` different texts of one byte or more, without the end-of-text token."""
    rng = random.Random(0)
    found = dict.fromkeys(
        [
            *JSON_PIECES,
            *NAMES,
            *(f"{number}" for number in range(10, 100)),
            *(f"{number:03}" for number in range(1000)),
            *(" " * length for length in range(2, 17)),
        ]
    )
    words = _words(rng)
    while len(found) < count:
        found[next(words)] = None
    return list(found)[:count]


def _words(rng: random.Random) -> Iterator[str]:
    """Short ones first, then ever longer ones at random, in their spellings."""
    syllables = ["".join(parts) for parts in product(ONSETS, VOWELS, CODAS)]
    for syllable in syllables:
        yield from (syllable, f" {syllable}", syllable.capitalize(), f" {syllable.capitalize()}")
    while True:
        word = "".join(rng.choice(syllables) for _ in range(rng.choice((2, 2, 3, 4))))
        yield from (f" {word}", word)
        if rng.random() < 0.3:
            yield from (f" {word.capitalize()}", f"{word}_", f".{word}", f" {word.upper()}")


@cache
def tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """`vocab` tokens: end of text is 0, then the bytes, then the pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {EOS_TEXT: EOS}
    for text in alphabet:
        ids[text] = len(ids)
    for text in pieces(vocab - len(ids)):
        ids.setdefault(text.replace(" ", "Ġ"), len(ids))
    assert len(ids) == vocab, "no piece is one byte"
    made = Tokenizer(models.BPE(vocab=ids, merges=[]))
    made.decoder = decoders.ByteLevel()
    wrap: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = wrap(tokenizer_object=made, eos_token=EOS_TEXT)
    return wrapped


@cache
def _ids(vocab: int) -> tuple[dict[str, int], int]:
    ids: dict[str, int] = tokenizer(vocab).get_vocab()
    return ids, max(map(len, ids))


def encode(text: str, vocab: int) -> list[int]:
    """Tokens of an ASCII text: the longest piece that fits, over and over."""
    ids, longest = _ids(vocab)
    tokens, rest = [], text.replace(" ", "Ġ")
    while rest:
        length = next(n for n in range(min(longest, len(rest)), 0, -1) if rest[:n] in ids)
        tokens.append(ids[rest[:length]])
        rest = rest[length:]
    return tokens


def decode(tokens: Sequence[int], vocab: int) -> str:
    text = tokenizer(vocab).decode(
        list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text
