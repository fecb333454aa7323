"""How many drafts each acceptance rule keeps, by temperature: the figures behind the default rule.

The embedded pair decodes in a plain loop on the models of transformers, outside the engine, with
the engine's own rules and sampling. A way is a rule and how the drafter chooses: its best token, a
draw with noise of its own, or a draw with the noise that the target will use. All ways are tried at
the same places of the same texts.

    python -m benchmarks.acceptance [--prompts 20] [--k 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from stepweave.policies.registry import policy
from stepweave.sampling.draw import draw, filtered_log_probs
from stepweave.sampling.noise import Purpose
from stepweave.sampling.windows import Windows
from training.corpus import EXTRACTION, Task, examples, story
from training.evaluate import encode
from training.tokenizer import load_tokenizer
from training.train import load_model

from .paired import at_least_one, save

EMBEDDED = Path(__file__).parents[1] / "models" / "embedded"
DOCS = Path(__file__).parents[1] / "docs"
SEED = 3
END = 2
"""The token that ends a text of the embedded pair."""
PROSE = 12
"""Words of a paragraph of our documentation that make a prompt."""
MIXES: dict[str, dict[Task, float]] = {"extraction": EXTRACTION, "story": {story: 1}}
TEMPERATURES = (0.0, 0.5, 0.8, 1.0)


@dataclass(frozen=True)
class Way:
    """A rule and the drafter's choice; `noise` None: its best token."""

    name: str
    rule: str
    noise: Purpose | None


WAYS = (
    Way("coupled, shared noise", "coupled", Purpose.TARGET),
    Way("coupled, best tokens", "coupled", None),
    Way("rejection, drawn", "rejection", Purpose.DRAFT),
    Way("rejection, best tokens", "rejection", None),
)
GREEDY = Way("greedy", "coupled", None)
"""At temperature 0 all ways are one: a draft is kept if it is the target's best token."""


@dataclass
class Kept:
    """Drafts kept by each step, one list per request."""

    requests: list[list[int]] = field(default_factory=list)

    def to_json(self) -> dict[str, float | None]:
        """With the standard error over requests: the steps of one are not independent.

        It is None of a single request, which says nothing of others.
        """
        steps = [kept for request in self.requests for kept in request]
        means = [fmean(request) for request in self.requests]
        error = round(stdev(means) / len(means) ** 0.5, 4) if len(means) > 1 else None
        return {
            "accepted_per_step": round(fmean(steps), 4),
            "standard_error": error,
            "first_accepted": round(fmean(kept > 0 for kept in steps), 4),
            "steps": len(steps),
        }


class Reader:
    """A model that has read a beginning of one sequence."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model, self.cache, self.read = model, DynamicCache(), 0

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits `[n, V]` after each of the tokens of the sequence that it has not read yet."""
        fresh = torch.tensor([list(tokens[self.read :])])
        self.read = len(tokens)
        result: Tensor = self.model(fresh, past_key_values=self.cache, use_cache=True).logits[0]
        return result

    def forget(self, length: int) -> None:
        """Keep no more than `length` tokens."""
        if length < self.read:
            self.cache.crop(length - self.read)  # negative: how many tokens to drop
            self.read = length


@dataclass(frozen=True)
class Pair:
    """A target and a drafter at work on one request."""

    target: Reader
    drafter: Reader
    temperature: float
    seed: int
    k: int

    def step(self, tokens: list[int], prompt: int, way: Way) -> list[int]:
        """What one step adds to the tokens; none but the last of them is read anew."""
        seeds, greedy = torch.tensor([self.seed]), torch.tensor([self.temperature == 0])
        position = torch.tensor([len(tokens) - prompt])
        window, drawn_from = list(tokens), []
        for place in range(self.k):
            q = self.distribution(self.drafter.logits(window)[-1:])
            drawn_from.append(q)
            if way.noise is None:
                window.append(int(q.argmax()))
            else:
                window.append(int(draw(q, seeds, position + place, greedy, way.noise)))
        verified = policy("acceptance", way.rule).verify(
            Windows(
                self.distribution(self.target.logits(window)[-self.k - 1 :])[None],
                torch.tensor([window[len(tokens) :]]),
                torch.tensor([self.k]),
                seeds,
                position,
                greedy,
                None if way.noise is None else torch.stack(drawn_from, dim=1),
            )
        )
        for reader in (self.target, self.drafter):
            reader.forget(len(tokens) - 1)
        settled: list[int] = verified.tokens[0, : int(verified.counts)].tolist()
        return settled

    def distribution(self, logits: Tensor) -> Tensor:
        rows = len(logits)
        return filtered_log_probs(
            logits,
            torch.full((rows,), self.temperature),
            torch.zeros(rows, dtype=torch.int64),
            torch.ones(rows),
            any_top_k=False,
            any_top_p=False,
        )


@torch.inference_mode()
def decode(pair: Pair, prompt: list[int], ways: Sequence[Way], limit: int, end: int) -> list[Kept]:
    """Drafts that each way keeps, step by step, along one text of at most `limit` tokens.

    The text goes on with what the first way gives, which must be coupled: then it is that of
    decoding without drafts. The other ways are tried at the same places, and go no further.
    """
    tokens = list(prompt)
    kept: list[list[int]] = [[] for _ in ways]
    while len(tokens) < len(prompt) + limit and tokens[-1] != end:
        tried = [pair.step(tokens, len(prompt), way) for way in ways]
        for counts, settled in zip(kept, tried, strict=True):
            ended = settled.index(end) + 1 if end in settled else len(settled)
            counts.append(min(len(settled) - 1, ended))
        first = tried[0]
        tokens += first[: first.index(end) + 1] if end in first else first
    return [Kept([counts]) for counts in kept]


def measure(prompts: dict[str, list[list[int]]], k: int, limit: int) -> list[dict[str, Any]]:
    """Every way at every temperature: one line of the table each."""
    target, drafter = (load_model(EMBEDDED / part) for part in ("target", "draft"))
    table = []
    for temperature in TEMPERATURES:
        ways = WAYS if temperature else (GREEDY,)
        lines: list[dict[str, Any]] = [
            {"temperature": temperature, "way": way.name} for way in ways
        ]
        for kind, some in prompts.items():
            found = [Kept() for _ in ways]
            for seed, prompt in enumerate(some):
                pair = Pair(Reader(target), Reader(drafter), temperature, seed, k)
                one = decode(pair, prompt, ways, limit, END)
                for every, each in zip(found, one, strict=True):
                    every.requests += each.requests
            for line, kept in zip(lines, found, strict=True):
                line[kind] = kept.to_json()
        table += lines
        print("\n".join(as_row(line) for line in lines), flush=True)
    return table


def as_row(line: dict[str, Any]) -> str:
    cells = [f"{line['temperature']:<12}{line['way']:<24}"]
    for each in line.values():
        if isinstance(each, dict):
            error = each["standard_error"]
            spread = "unknown" if error is None else f"{error:.2f}"
            cells.append(
                f"{each['accepted_per_step']:>9.2f} ± {spread:4}{each['first_accepted']:>8.2f}"
            )
    return "".join(cells)


def prose() -> Iterator[str]:
    """Beginnings of paragraphs of our documentation, which the models were not trained on."""
    for page in sorted(DOCS.glob("*.md")):
        for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
            words = paragraph.split()
            if paragraph[:1].isalpha() and len(words) > PROSE:
                yield " ".join(words[:PROSE])


def asked(count: int) -> dict[str, list[list[int]]]:
    """Prompts by kind: two that the pair was trained for, and prose that neither has ever read."""
    tokenizer = load_tokenizer(EMBEDDED / "target")
    prompts = {
        kind: [
            encode(tokenizer, example, chat=True).tolist()
            for example in islice(examples(SEED, mix, held_out=True), count)
        ]
        for kind, mix in MIXES.items()
    }
    prompts["prose"] = [list(tokenizer(text).input_ids) for text in islice(prose(), count)]
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=at_least_one, default=20, help="of each kind")
    parser.add_argument("--k", type=at_least_one, default=3, help="drafts per step")
    parser.add_argument("--limit", type=at_least_one, default=64, help="most tokens of an answer")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    prompts = asked(given.prompts)
    heads = "".join(f"{kind:>16}{'first':>8}" for kind in prompts)
    print(f"drafts kept per step, of {given.k}; and how often the first\n")
    print(f"{'temperature':<12}{'way':<24}{heads}")
    lines = measure(prompts, given.k, given.limit)
    save("acceptance", {"k": given.k, "prompts": given.prompts, "ways": lines}, given.json)


if __name__ == "__main__":
    main()
