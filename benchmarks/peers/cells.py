"""What is compared: a model, its numbers, how many prompts of what length, and an opponent.

Each opponent is compared with the pipeline of ours that does the same: assisted generation with a
draft model, look-up with look-up, everything else with plain asynchronous decoding.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from .shapes import SHAPES, Shape

DRAFTS = 3


@dataclass(frozen=True)
class Side:
    """A module of `workers/`, what it is told, and the environment that it runs in; None: ours."""

    module: str
    told: Mapping[str, Any] = field(default_factory=dict)
    environment: str | None = None


def _ours(pipeline: str, overrides: Mapping[str, Any], *, drafter: bool = False) -> Side:
    told = {"pipeline": pipeline, "drafter": drafter, "overrides": overrides}
    return Side("stepweave_side", told)


def _theirs(how: str) -> Side:
    return Side("transformers_side", {"how": how})


PLAIN = _ours("async", {})
DRAFTING = _ours("async_speculation", {"nodes.draft.tokens": DRAFTS}, drafter=True)
LOOKING_UP = _ours("async_ngram", {"nodes.draft.tokens": DRAFTS})


@dataclass(frozen=True)
class Opponent:
    """Whom ours is compared with. `alone`: it decodes one prompt at a time."""

    name: str
    side: Side
    ours: Side = PLAIN
    alone: bool = False


OPPONENTS = (
    Opponent("generate", _theirs("generate")),
    Opponent("generate_batch", _theirs("generate_batch")),
    Opponent("assisted", _theirs("assistant"), DRAFTING, alone=True),
    Opponent("lookup", _theirs("lookup"), LOOKING_UP, alone=True),
    Opponent("not_invariant", _ours("async", {"model.invariant": False})),
    Opponent("llama_cpp", Side("llama_cpp_side", environment="llama_cpp")),
    Opponent("openvino", Side("openvino_side", environment="openvino")),
)


@dataclass(frozen=True)
class Cell:
    """One comparison. `tokens`: how many each prompt is continued by."""

    shape: Shape
    dtype: str
    batch: int
    prompt: int
    tokens: int
    opponent: Opponent

    @property
    def name(self) -> str:
        """As `--only` matches it."""
        where = f"{self.shape.name}/{self.dtype}/b{self.batch}/p{self.prompt}"
        return f"{where}/{self.opponent.name}"

    def prompts(self) -> list[list[int]]:
        """Random tokens, none of them the end of a text; the same for both sides."""
        rng = random.Random(self.batch * self.prompt)
        words = self.shape.vocab
        return [[rng.randrange(1, words) for _ in range(self.prompt)] for _ in range(self.batch)]

    def most_mib(self) -> int:
        """What a side may take: a tenth more than weights and cache, and 300 MB for itself."""
        size = SIZES[self.dtype]
        cache = self.shape.cache_bytes(self.batch * (self.prompt + self.tokens), size)
        return round(1.1 * (self.shape.parameters * size + cache) / 2**20 + 300e6 / 2**20)

    def expected_s(self, rounds: int, threads: int) -> float:
        """About how long it takes: products of the prompt, weights read for each step, loading.

        With round figures for one core, to plan with; `--list` prints it.
        """
        size = SIZES[self.dtype]
        flops = 2 * self.shape.parameters * self.prompt * self.batch
        bytes_read = self.shape.parameters * size * self.tokens
        run = flops / (FLOPS * threads) + bytes_read / (BYTES_PER_S * min(threads, 2))
        return 2 * (STARTS_S + self.shape.parameters * size / 1e9 + run * (rounds + 1))


SIZES = {"float32": 4, "bfloat16": 2}
FLOPS, BYTES_PER_S, STARTS_S = 60e9, 10e9, 8.0


def grid(
    shapes: Sequence[str] = ("smollm2-135m", "qwen3-0.6b", "llama-1b"),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    batches: Sequence[int] = (1, 4, 16),
    prompts: Sequence[int] = (64, 1024),
    tokens: int = 48,
) -> list[Cell]:
    """Every cell, the quickest model first and all opponents of one setting together."""
    return [
        Cell(SHAPES[shape], dtype, batch, prompt, tokens, opponent)
        for shape, dtype, batch, prompt in product(shapes, dtypes, batches, prompts)
        for opponent in OPPONENTS
        if batch == 1 or not opponent.alone
    ]


def toy() -> list[Cell]:
    """A grid to rehearse with: its numbers say nothing."""
    return grid(("toy", "toy-qwen3"), ("float32",), (1, 2), (8,), 6)


def chosen(names: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    """Those that a pattern matches; all without patterns. Raises `ValueError` for one without."""
    if patterns is None:
        return list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no cell is called {pattern!r}; --list has the names")
    return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]
