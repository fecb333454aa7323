"""Decode steps alone of the embedded model, against those of transformers' `generate`, padded.

Greedy, float32, one torch thread on all sides, with 1 and 16 requests that all run to the same
length. Each side decodes to a short length and to a long one; the difference has no prompt step, no
start and no end, and is divided by the steps between the two. Tokens of all sides must be equal.

    python -m benchmarks.peers.steady [--rows 1,16] [--tokens 128] [--rounds 15]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepweave import LLM
from stepweave.models.source import resolve

from ..paired import Spread, at_least_one, own_process, save
from .embedded import padded, work

SHORT = 16
"""Tokens of the run that is taken off: prompt steps are over, shapes are recorded."""
PIPELINES = ("synchronous", "async")
Side = Callable[[int], list[list[int]]]
"""Decodes so many tokens of each request."""


def ours(prompts: Sequence[list[int]], pipeline: str) -> Side:
    llm = LLM(pipeline=pipeline, overrides={"torch_threads": "1"})

    def decode(tokens: int) -> list[list[int]]:
        outputs = llm.generate(prompts, {"max_tokens": tokens, "ignore_eos": True})
        return [list(output.token_ids) for output in outputs]

    return decode


def theirs(prompts: Sequence[list[int]], pad: int) -> Side:
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(resolve("embedded"), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = pad
    return lambda tokens: padded(model, pad, prompts, [tokens] * len(prompts))


def a_step(side: Side, tokens: int) -> float:
    """µs of one step between the short and the long run."""
    began = perf_counter()
    side(SHORT)
    between = perf_counter()
    side(SHORT + tokens)
    ended = perf_counter()
    return ((ended - between) - (between - began)) / tokens * 1e6


def measure(rows: int, tokens: int, rounds: int) -> dict[str, Any]:
    """All sides with so many requests. Raises `RuntimeError` where tokens differ."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("embedded"))
    prompts, _ = work(rows, tokenizer)
    sides = {"generate": theirs(prompts, int(tokenizer.pad_token_id))}
    sides |= {pipeline: ours(prompts, pipeline) for pipeline in PIPELINES}
    found = {name: side(SHORT + tokens) for name, side in sides.items()}
    if wrong := [name for name in PIPELINES if found[name] != found["generate"]]:
        raise RuntimeError(f"{', '.join(wrong)}: tokens differ from those of `generate`")
    took: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        names = list(sides)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            took[name].append(a_step(sides[name], tokens))
    table: dict[str, Any] = {"generate_us": vars(Spread.of(took["generate"]))}
    print(
        f"{rows} requests: a step of `generate` takes {Spread.of(took['generate']).median:.0f} µs"
    )
    for name in PIPELINES:
        pairs = zip(took["generate"], took[name], strict=True)
        faster = Spread.of([theirs / ours for theirs, ours in pairs])
        table[name] = {"us": vars(Spread.of(took[name])), "faster": vars(faster)}
        print(f"  {name:12} {Spread.of(took[name]).median:6.0f} µs, as fast {faster}")
    return table


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", default="1,16")
    parser.add_argument("--tokens", type=at_least_one, default=128)
    parser.add_argument("--rounds", type=at_least_one, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    result = {
        rows: measure(int(rows), given.tokens, given.rounds) for rows in given.rows.split(",")
    }
    save("steady", {"tokens": given.tokens, "requests": result}, given.json)


if __name__ == "__main__":
    own_process()
    main()
