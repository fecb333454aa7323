"""What the steered runs write: valid JSON texts, and which drafts of them are right.

A text is made for its schema, cut into tokens, and followed through the grammar, which must take
each of them. At each place another token that the grammar would take is the *wrong* draft; where
there is none the draft is right. So acceptance is known beforehand, to the last draft.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor

from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.bitmask import words
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .networks import EOS
from .vocabulary import encode, tokenizer

Bools = npt.NDArray[np.bool_]

SYLLABLES = ("ka", "lo", "mi", "ren", "sta", "tor", "vel", "nu", "bra", "dis")


def _name(rng: random.Random, words_: int = 2) -> str:
    made = ("".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) for _ in range(words_))
    return " ".join(word.capitalize() for word in made)


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def person(rng: random.Random) -> dict[str, Any]:
    return {
        "name": _name(rng),
        "age": rng.randint(18, 90),
        "city": _name(rng, 1),
        "job": _name(rng, 2),
        "about": _name(rng, rng.randint(8, 14)),
    }


def choice(rng: random.Random) -> dict[str, Any]:
    return {"label": rng.choice(("positive", "negative", "neutral")), "score": rng.randint(0, 999)}


def forty(rng: random.Random) -> dict[str, Any]:
    return {
        f"field_{i}": _name(rng, 1)
        if i % 4 == 0
        else rng.choice((True, False, rng.randint(0, 99)))
        if i % 4 == 1
        else rng.randint(0, 9999)
        for i in range(40)
    }


def bounded(rng: random.Random) -> dict[str, Any]:
    return {field: _name(rng, rng.randint(6, 10)) for field in ("title", "summary", "text")}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": _object(
        {"name": STRING, "age": INTEGER, "city": STRING, "job": STRING, "about": STRING}
    ),
    "choice": _object({"label": {"enum": ["positive", "negative", "neutral"]}, "score": INTEGER}),
    "forty": _object(
        {
            f"field_{i}": (STRING, {"type": ["boolean", "integer"]}, INTEGER, INTEGER)[i % 4]
            for i in range(40)
        }
    ),
    "bounded": _object(
        {name: {"type": "string", "maxLength": 300} for name in ("title", "summary", "text")}
    ),
}
TEXTS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "person": person,
    "choice": choice,
    "forty": forty,
    "bounded": bounded,
}
MIXED = ("person", "person", "choice", "forty")
STRESS = ("bounded",)


class Expected(NamedTuple):
    """What a request that follows a trace comes to."""

    tokens: list[int]
    steps: int  # decode steps, after the one that computed its prompt
    accepted: int


@dataclass(frozen=True)
class Traces:
    """`tokens[N, L]` and `wrong[N, L]`, int64, filled up with the end of text; `right[N, L, k]`."""

    tokens: Tensor
    wrong: Tensor
    right: Tensor
    lengths: tuple[int, ...]  # the end of text included
    grammars: tuple[CompiledGrammar, ...]  # of each trace

    def save(self, path: Path) -> None:
        save_file({"tokens": self.tokens, "wrong": self.wrong, "right": self.right}, path)

    def expected(self, index: int, k: int) -> Expected:
        """By the rule alone: the drafts before the first wrong one are kept, and one more token."""
        length = self.lengths[index]
        right = self.right[index] | (self.wrong[index] == self.tokens[index])[:, None]
        steps, accepted = _followed(right.tolist(), length, k)
        return Expected(self.tokens[index, :length].tolist(), steps, accepted)


def _followed(right: Sequence[Sequence[bool]], length: int, k: int) -> tuple[int, int]:
    """Decode steps and accepted drafts of a text of so many tokens."""
    at, steps, accepted = 1, 0, 0  # the prompt's step gave the first token
    while at < length:
        kept = 0
        while kept < k and right[min(at + kept, len(right) - 1)][kept]:
            kept += 1
        steps += 1
        accepted += min(kept, length - at)
        at += kept + 1
    return steps, accepted


Dial = float | Sequence[float] | Callable[[int, int, int], bool]


def make(
    schemas: Sequence[str],
    count: int,
    vocab: int,
    k: int,
    dial: Dial,
    *,
    threads: int = 2,
) -> Traces:
    """`count` traces, of these schemas in turn.

    `dial`: how many tokens a decode step is to give on average, as near as one share of right
    drafts comes to it; or that share for each place of a window; or a function that says of each
    (trace, output position, place) whether the draft is right.
    """
    backend = XGrammarBackend(
        tokenizer(vocab), vocab, (EOS,), BackendOptions(compile_threads=threads)
    )
    compiled = {
        name: backend.compile(GrammarSpec.from_request({"json": SCHEMAS[name]}))
        for name in dict.fromkeys(schemas)
    }
    rng = random.Random(0)
    grammars, rows, others = [], [], []
    for index in range(count):
        name = schemas[index % len(schemas)]
        text = json.dumps(TEXTS[name](rng))
        trace = [*encode(text, vocab), EOS]
        grammars.append(compiled[name])
        rows.append(trace)
        others.append(_wrong(compiled[name], trace, vocab, rng))
    longest = max(map(len, rows)) + k + 1
    tokens, wrong = _padded(rows, longest), _padded(others, longest)
    lengths = tuple(map(len, rows))
    right = _right(dial, (tokens == wrong).numpy(), lengths, k)
    return Traces(tokens, wrong, torch.from_numpy(right), lengths, tuple(grammars))


def _right(dial: Dial, forced: Bools, lengths: Sequence[int], k: int) -> Bools:
    """`[N, L, k]`; where `forced[N, L]`, a draft is right whatever the dial says."""
    shape = (*forced.shape, k)
    if callable(dial):
        return np.array([dial(*at) for at in np.ndindex(*shape)], dtype=bool).reshape(shape)
    drawn = np.random.default_rng(0).random(shape)
    if not isinstance(dial, float | int):
        return np.asarray(drawn < np.asarray(dial), dtype=bool)
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        right = (drawn < middle) | forced[..., None]
        steps = sum(
            _followed(row.tolist(), length, k)[0]
            for row, length in zip(right, lengths, strict=True)
        )
        low, high = (
            (middle, high) if (sum(lengths) - len(lengths)) / steps < dial else (low, middle)
        )
    return np.asarray(drawn < high, dtype=bool)


def _wrong(
    grammar: CompiledGrammar, trace: Sequence[int], vocab: int, rng: random.Random
) -> list[int]:
    """At each place a token that the grammar takes there and that is not the trace's."""
    matcher, row = grammar.matcher(), np.zeros((1, words(vocab)), dtype=np.int32)
    found = []
    for token in trace:
        matcher.fill_window((), row)
        allowed = np.flatnonzero(np.unpackbits(row[0].view(np.uint8), bitorder="little")[:vocab])
        legal = allowed[(allowed != token) & (allowed != EOS)]
        found.append(int(legal[rng.randrange(len(legal))]) if len(legal) else token)
        if not matcher.accept(token):
            raise ValueError(f"the grammar refuses token {token} of a text that was made for it")
    return found


def _padded(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    return torch.tensor([[*row, *[EOS] * (width - len(row))] for row in rows])
