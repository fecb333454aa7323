"""Tokens per step of draft trees, over the chain with as many drafts.

The embedded model with its EAGLE-3 head, float32, batch 1: extraction prompts with held-out words,
stories, and prose unlike its training data, by temperature. A step judges as many drafts on either
side, and settles those that are kept and one more. Which these are depends on no clock, and not on
the other requests of a batch, so requests are decoded together.

    python -m benchmarks.trees [--prompts 12] [--tokens 64] [--budgets 8,16]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stepweave import LLM
from training.corpus import EXTRACTION, Task, examples, story

from .acceptance import prose
from .paired import at_least_one, own_process, save

PIPELINE = "async_eagle3_grammar"
SEED = 11
TEXTS: dict[str, dict[Task, float]] = {"extraction": EXTRACTION, "story": {story: 1}}
TEMPERATURES = (0.0, 1.0)
ALL = "all"
"""All kinds of texts together, at one temperature."""


@dataclass(frozen=True)
class Offer:
    """What a drafter offers each step: `tree` as in a pipeline file; None: a chain."""

    tokens: int
    tree: dict[str, Any] | tuple[tuple[int, ...], ...] | None = None

    def __str__(self) -> str:
        if isinstance(self.tree, dict):
            return ", ".join(f"{key} {value}" for key, value in self.tree.items())
        if self.tree is None:
            return "chain"
        return "listed"

    def settings(self) -> dict[str, Any]:
        """What it changes in the file."""
        tree: Any = (
            [list(path) for path in self.tree] if isinstance(self.tree, tuple) else self.tree
        )
        return {"nodes.draft.tree": tree, "nodes.draft.tokens": self.tokens}


def listed(tokens: int) -> tuple[tuple[int, ...], ...]:
    """A tree of so many nodes: the best way, and second choices after its places, early ones first.

    The longer the way, the less likely it is to be kept as a whole: two thirds of the nodes.
    """
    deep = max(1, -(-2 * tokens // 3))
    way = [(0,) * length for length in range(1, deep + 1)]
    second = [(*((0,) * length), 1) for length in range(deep)]
    return tuple(sorted((*way, *second[: tokens - deep])))


def grown(tokens: int, width: int, **more: Any) -> Offer:
    """A tree of so many nodes that grows, `width` of them in each pass of the drafter."""
    return Offer(tokens, {"width": width, "depth": (tokens - 1) // width + 1, **more})


def offers(tokens: int) -> list[Offer]:
    """The chain with so many drafts, then trees with as many."""
    likeliest = [grown(tokens, width, children=3, among="all") for width in (2, 1)]
    return [Offer(tokens), Offer(tokens, listed(tokens)), grown(tokens, 2), *likeliest]


def lines(count: int, tokens: int, temperature: float) -> list[dict[str, Any]]:
    """Prompts of each kind of text, in turn; `text` says which."""
    prompts = {
        text: [each.prompt for each in islice(examples(SEED, mix, held_out=True), count)]
        for text, mix in TEXTS.items()
    }
    prompts["prose"] = list(islice(prose(), count))
    return [
        {
            "text": text,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": temperature,
            "seed": index,
            "ignore_eos": text == "prose",
        }
        for text, each in prompts.items()
        for index, prompt in enumerate(each)
    ]


@dataclass
class Tally:
    """What requests came to: the first token of each needs no draft, and is not counted."""

    offered: int  # drafts of a step
    tokens: int = 0
    drafted: int = 0

    def add(self, tokens: int, drafted: int) -> None:
        """Count a request of so many tokens, for which so many drafts were judged."""
        self.tokens += tokens - 1
        self.drafted += drafted

    @property
    def per_step(self) -> float:
        """Tokens of a step; each step judges all drafts that are offered."""
        return self.tokens * self.offered / max(1, self.drafted)


def measured(
    offer: Offer, given: Sequence[dict[str, Any]]
) -> tuple[dict[str, Tally], list[Sequence[int]]]:
    """Tokens and steps by kind of text, and the tokens of each request."""
    changes: dict[str, Any] = {"torch_threads": 1, "executor": "serial", **offer.settings()}
    if offer.tree is not None:
        changes["nodes.keep_path"] = {"after": "sample"}
    tallies: dict[str, Tally] = {}
    with LLM(pipeline=PIPELINE, overrides=changes) as llm:
        asked = [{k: v for k, v in line.items() if k != "text"} for line in given]
        outputs = llm.generate(asked)
    for line, output in zip(given, outputs, strict=True):
        for text in (line["text"], ALL):
            tally = tallies.setdefault(text, Tally(offer.tokens))
            tally.add(len(output.token_ids), output.drafted)
    return tallies, [output.token_ids for output in outputs]


def run(prompts: int, tokens: int, budgets: Sequence[int]) -> dict[str, Any]:
    """Tokens per step of each offer, and over the chain of its budget. Raises `ValueError` where
    tokens differ.
    """
    found: list[dict[str, Any]] = []
    for temperature in TEMPERATURES:
        given = lines(prompts, tokens, temperature)
        said: list[Sequence[int]] | None = None
        for budget in budgets:
            chain: dict[str, Tally] = {}
            for offer in offers(budget):
                tallies, outputs = measured(offer, given)
                if said is not None and said != outputs:
                    raise ValueError(f"{offer} of {budget} drafts: other tokens than before")
                said, chain = outputs, chain or tallies
                found += [
                    {
                        "temperature": temperature,
                        "text": text,
                        "drafts": budget,
                        "offer": str(offer),
                        "tokens_per_step": round(tally.per_step, 4),
                        "over_chain": round(tally.per_step / chain[text].per_step, 4),
                    }
                    for text, tally in tallies.items()
                ]
    return {"prompts_of_a_kind": prompts, "tokens": tokens, "results": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=at_least_one, default=12, help="of each kind of text")
    parser.add_argument("--tokens", type=at_least_one, default=64, help="of an output, at most")
    parser.add_argument("--budgets", default="8,16", help="drafts of a step")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    budgets = [at_least_one(each) for each in given.budgets.split(",")]
    found = run(given.prompts, given.tokens, budgets)
    for line in found["results"]:
        print(
            "temperature {temperature:3}  {text:10}  {drafts:2} drafts  {offer:40}  "
            "{tokens_per_step:.3f} tokens per step  {over_chain:.3f}".format(**line)
        )
    save("trees", found, given.json)


if __name__ == "__main__":
    own_process()
    main()
