"""What is asked: prompts of given lengths, those of a file, or those of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any, Protocol

import numpy as np

from ..configs.prompts import PromptLine
from ..requests.params import SamplingParams
from .ask import Ask
from .traces import BLOCK_TOKENS, Traced
from .words import WordCost, words

_PREFIX, _BODY, _BLOCK, _LENGTHS, _CHOICE = range(5)  # streams of random numbers


class Workload(Protocol):
    """Makes the asks of a load; the same seed gives the same asks."""

    def asks(self, count: int, seed: int, cost: WordCost) -> list[Ask]: ...

    def about(self) -> dict[str, Any]:
        """What it is, for the JSON result; it may replace what is said of arrivals."""
        ...


def drawn_length(draw: np.random.Generator, mean: int, spread: float) -> int:
    """A number of tokens from `1 - spread` to `1 + spread` times the mean, at least 1."""
    low, high = round(mean * (1 - spread)), round(mean * (1 + spread))
    return max(1, int(draw.integers(low, high + 1)))


@dataclass(frozen=True)
class RandomPrompts:
    """Prompts and answers of random lengths, in tokens, around the given ones.

    Lengths are drawn evenly from `1 - spread` to `1 + spread` times the given one. Each prompt
    begins with one of `prefixes` shared texts of `prefix` tokens; they come on top of `input`.
    """

    input: int
    output: int
    spread: float = 0.0
    prefix: int = 0
    prefixes: int = 1

    def asks(self, count: int, seed: int, cost: WordCost) -> list[Ask]:
        lengths = np.random.default_rng([seed, _LENGTHS])
        choice = np.random.default_rng([seed, _CHOICE])
        shared = [
            words(cost.words(self.prefix), seed, _PREFIX, number) if self.prefix else ""
            for number in range(self.prefixes)
        ]
        found = []
        for index in range(count):
            own, output = (
                drawn_length(lengths, mean, self.spread) for mean in (self.input, self.output)
            )
            own = max(1, own - round(cost.added))
            text = words(cost.words(own), seed, _BODY, index)
            prefix = shared[int(choice.integers(self.prefixes))]
            found.append(Ask(str(index), f"{prefix} {text}".strip(), output))
        return found

    def about(self) -> dict[str, Any]:
        return {
            "workload": "random",
            "input_len": self.input,
            "output_len": self.output,
            "range_ratio": self.spread,
            "prefix_len": self.prefix,
            "num_prefixes": self.prefixes,
        }


@dataclass(frozen=True)
class GivenPrompts:
    """The lines of a prompts file, again from the top where more are wanted.

    `output`: the largest number of tokens, in place of what the lines say. A line that says none
    is asked for as many as `run` would generate, whatever a server's own default is.
    """

    lines: Sequence[PromptLine]
    output: int | None = None

    def asks(self, count: int, seed: int, cost: WordCost) -> list[Ask]:
        return [
            self._ask(index, line) for index, line in enumerate(islice(cycle(self.lines), count))
        ]

    def about(self) -> dict[str, Any]:
        return {"workload": "prompts", "output_len": self.output}

    def _ask(self, index: int, line: PromptLine) -> Ask:
        prompt: Any
        if line.prompt is not None:
            prompt = line.prompt
        elif line.prompt_token_ids is not None:
            prompt = [*line.prompt_token_ids]
        else:
            prompt = tuple(each.model_dump() for each in line.messages or ())
        said = line.model_dump(mode="json", include=set(line.parameters) - {"max_tokens"})
        return Ask(
            line.id if line.id is not None else str(index),
            prompt,
            self.output or line.parameters.get("max_tokens") or SamplingParams().max_tokens,
            parameters=said,
        )


@dataclass(frozen=True)
class ReplayedTrace:
    """A trace, `speed_up` times as fast, with all lengths multiplied by `length_scale`.

    Prompts whose blocks have the same ids in the trace have the same words in these blocks.
    """

    trace: Sequence[Traced]
    speed_up: float = 1.0
    length_scale: float = 1.0

    def asks(self, count: int, seed: int, cost: WordCost) -> list[Ask]:
        again = islice(cycle(self.trace), count)  # a warm-up may be longer than the trace
        return [self._ask(index, each, seed, cost) for index, each in enumerate(again)]

    def about(self) -> dict[str, Any]:
        """Its times are its own: there is no rate, nor a shape of arrivals."""
        return {
            "workload": "trace",
            "speed_up": self.speed_up,
            "length_scale": self.length_scale,
            **dict.fromkeys(("request_rate", "burstiness", "burst")),
        }

    def _ask(self, index: int, each: Traced, seed: int, cost: WordCost) -> Ask:
        tokens = self._scaled(each.input_tokens)
        text = " ".join(self._parts(index, each, tokens, seed, cost))
        output = self._scaled(each.output_tokens)
        return Ask(str(index), text, output, at_s=each.at_s / self.speed_up)

    def _parts(
        self, index: int, each: Traced, tokens: int, seed: int, cost: WordCost
    ) -> Iterator[str]:
        """The words of each block, of which the last may be cut; then what has no block."""
        block = self._scaled(BLOCK_TOKENS)
        rest = tokens if each.blocks else max(1, tokens - round(cost.added))
        for number in each.blocks:
            if rest <= 0:
                return
            yield words(cost.words(min(block, rest)), seed, _BLOCK, number)
            rest -= block
        if rest > 0:
            yield words(cost.words(rest), seed, _BODY, index)

    def _scaled(self, tokens: int) -> int:
        return max(1, round(tokens * self.length_scale))


@dataclass(frozen=True)
class UnderSchemas:
    """Another workload, whose answers follow schemas, one after another."""

    inner: Workload
    schemas: Sequence[tuple[str, Any]] = field(repr=False)

    def asks(self, count: int, seed: int, cost: WordCost) -> list[Ask]:
        asked = self.inner.asks(count, seed, cost)
        return [
            replace(ask, schema=schema)
            for ask, schema in zip(asked, cycle(self.schemas), strict=False)
        ]

    def about(self) -> dict[str, Any]:
        return {**self.inner.about(), "schemas": [name for name, _ in self.schemas]}
