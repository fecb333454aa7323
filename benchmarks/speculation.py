"""What each way of drafting is worth, with and without a grammar, and against assisted generation.

The embedded model, extraction prompts with held-out words, greedy, float32, one torch thread on
all sides. The prompts are those whose answer is the same with and without the schema of its fields,
so that grammar on and off decode equal tokens with equal drafts. A round counts only if all tokens
are equal. *Forwards per token* is steps by tokens; drafting pays where it falls faster than a step
grows. Each side runs some times before, in which shapes of its steps are recorded.

    python -m benchmarks.speculation [--rows 1] [--prompts 12] [--rounds 5] [--warm 10]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from stepweave import LLM
from stepweave.models.source import resolve
from training.corpus import EXTRACTION, Example, examples
from training.evaluate import schema_of

from .paired import Spread, at_least_one, own_process, save
from .peers.embedded import until_eos

SEED = 7
LIMIT = 160
LOOKED_UP = 8
"""Drafts of prompt look-up, ours and that of transformers, where they are compared."""
ARITHMETIC_OF_THEIRS = ("without invariant arithmetic", "as transformers computes")
"""By the engine as it is, and by one on a single thread at depth 1."""
OPPONENTS = {
    "none": "transformers, none",
    "draft model": "transformers, assistant",
    "EAGLE-3": "transformers, assistant",
    "n-gram": "transformers, prompt look-up",
}
"""What of transformers each way is compared with; the draft model is its assistant, too."""
METHODS: dict[str, dict[str, str]] = {
    "none": {},
    "draft model": {"nodes.draft": "{kind: draft_model, after: sample, tokens: 3}"},
    "EAGLE": {"nodes.draft": "{kind: eagle, after: sample, tokens: 3}"},
    "EAGLE-3": {"nodes.draft": "{kind: eagle3, after: sample, tokens: 3}"},
    "n-gram": {"nodes.draft": "{kind: ngram, after: sample, tokens: 4}"},
}


@dataclass
class Side:
    """One way to decode the prompts, and what its rounds came to."""

    run: Callable[[], list[list[int]]]
    llm: LLM | None = None
    seconds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)


def lines(asked: Sequence[Example], *, grammar: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for example in asked:
        line: dict[str, Any] = {"prompt": example.prompt, "max_tokens": LIMIT}
        if grammar:
            line["structured_outputs"] = {"json": schema_of(json.loads(example.answer))}
        found.append(line)
    return found


def agreed(count: int) -> list[Example]:
    """Prompts whose greedy answer follows their schema of its own accord."""
    asked = list(islice(examples(SEED, EXTRACTION, held_out=True), 2 * count + 8))
    llm = LLM(pipeline="async_grammar", overrides={"torch_threads": "1"})
    free = llm.generate(lines(asked, grammar=False))
    bound = llm.generate(lines(asked, grammar=True))
    llm.close()
    pairs = zip(asked, free, bound, strict=True)
    return [example for example, a, b in pairs if a.token_ids == b.token_ids][:count]


def ours(
    asked: Sequence[Example], method: str, rows: int, *, grammar: bool, **overrides: str
) -> Side:
    llm = LLM(
        pipeline="async_grammar" if grammar else "async",
        overrides={
            "torch_threads": "1",
            "scheduler.max_rows": str(rows),
            "scheduler.prefix_cache": "false",
            **METHODS[method],
            **overrides,
        },
    )
    prompts = encoded(asked, llm.tokenizer)
    params = [
        {key: value for key, value in line.items() if key != "prompt"}
        for line in lines(asked, grammar=grammar)
    ]

    def run() -> list[list[int]]:
        found = llm.generate(prompts, params)
        if errors := [output.error for output in found if output.error is not None]:
            raise RuntimeError(errors[0])
        return [list(output.token_ids) for output in found]

    return Side(run, llm)


def encoded(asked: Sequence[Example], tokenizer: Any) -> list[list[int]]:
    """The prompts as tokens, for all sides: none is timed with its chat template and tokenizer."""
    found: list[list[int]] = []
    for example in asked:
        turn = [{"role": "user", "content": example.prompt}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        found.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return found


def assisted(asked: Sequence[Example], tokenizer: Any, **how: Any) -> Side:
    """`generate` of transformers with an assistant, or prompt look-up: one prompt at a time."""
    model: Any = AutoModelForCausalLM.from_pretrained(resolve("embedded"), dtype=torch.float32)
    model.train(False)
    ids = [torch.tensor([prompt]) for prompt in encoded(asked, tokenizer)]

    def run() -> list[list[int]]:
        found = []
        for each in ids:
            with torch.inference_mode():
                out = model.generate(
                    each,
                    attention_mask=torch.ones_like(each),
                    max_new_tokens=LIMIT,
                    do_sample=False,
                    **how,
                )
            found.append(out[0, each.shape[1] :].tolist())
        return found

    return Side(run)


def assistant() -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(
        resolve("embedded-draft"), dtype=torch.float32
    )
    model.train(False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=at_least_one, default=1, help="requests in one step")
    parser.add_argument("--prompts", type=at_least_one, default=12)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--warm", type=at_least_one, default=10, help="runs before, not counted")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    asked = agreed(given.prompts)
    methods = [each for each in METHODS if each in {"none", *given.only}]
    sides: dict[str, Side] = {}
    for grammar in (False, True):
        for method in methods:
            name = f"{method}, grammar" if grammar else method
            sides[name] = ours(asked, method, given.rows, grammar=grammar)
    tokenizer = sides["none"].llm.tokenizer if sides["none"].llm else None
    if given.rows == 1:
        # The arithmetic of transformers: by an engine as it is, and by one on a single thread, as
        # there, where nothing overlaps. Steps of both are recorded.
        pipelined, alone = ARITHMETIC_OF_THEIRS
        engines: dict[str, dict[str, str]] = {
            pipelined: {},
            alone: {"executor": "serial", "depth": "1"},
        }
        tokens = {"EAGLE-3": "5", "n-gram": str(LOOKED_UP)}
        for how, overrides in engines.items():
            for method in filter(OPPONENTS.__contains__, methods):
                more = {"model.invariant": "false", **overrides}
                if method in tokens:
                    more["nodes.draft.tokens"] = tokens[method]
                sides[f"{method}, {how}"] = ours(asked, method, 1, grammar=False, **more)
        theirs: dict[str, dict[str, Any]] = {
            "transformers, none": {},
            "transformers, assistant": {"assistant_model": assistant()},
            "transformers, prompt look-up": {"prompt_lookup_num_tokens": LOOKED_UP},
        }
        for name in dict.fromkeys(OPPONENTS[each] for each in methods if each in OPPONENTS):
            sides[name] = assisted(asked, tokenizer, **theirs[name])
    for side in sides.values():
        for _ in range(given.warm):
            side.tokens = side.run()  # what must be equal
        if side.llm is not None:
            side.llm.engine.totals.restore(type(side.llm.engine.totals)())
    for turn in range(given.rounds):
        names = list(sides) if turn % 2 == 0 else list(reversed(sides))
        for name in names:
            started = perf_counter()
            sides[name].run()
            sides[name].seconds.append(perf_counter() - started)
    report(sides, given)


def report(sides: dict[str, Side], given: argparse.Namespace) -> None:
    none = sides["none"]
    eos = 0
    if none.llm is not None:
        eos = int(none.llm.tokenizer.eos_token_id)
    expected = [until_eos(row, eos) for row in none.tokens]
    count = sum(map(len, expected))
    print(f"{len(expected)} prompts, {count} tokens, {given.rows} row(s) in a step")
    print(
        f"{'':38} {'faster than none':>26} {'tokens/s':>9} {'forwards/token':>15} {'accepted':>9}"
    )
    table: dict[str, Any] = {}
    for name, side in sides.items():
        equal = [until_eos(row, eos) for row in side.tokens] == expected
        faster = Spread.of([a / b for a, b in zip(none.seconds, side.seconds, strict=True)])
        row: dict[str, Any] = {
            "faster_than_none": vars(faster),
            "tokens_per_second": count / Spread.of(side.seconds).median,
            "tokens_equal": equal,
        }
        if side.llm is not None:
            totals = side.llm.engine.totals
            row["forwards_per_token"] = totals.steps / totals.tokens
            row["drafted"], row["accepted"] = totals.drafted, totals.accepted
        if name.endswith(", grammar"):
            off = sides[name.removesuffix(", grammar")]
            kept = Spread.of([a / b for a, b in zip(off.seconds, side.seconds, strict=True)])
            row["speed_of_grammar_off"] = vars(kept)
        opponent = sides.get(OPPONENTS.get(name.partition(", ")[0], ""))
        if opponent is not None and name.endswith(ARITHMETIC_OF_THEIRS):
            ahead = Spread.of([b / a for a, b in zip(side.seconds, opponent.seconds, strict=True)])
            row["faster_than_theirs"] = vars(ahead)
        table[name] = row
        accepted = f"{row['accepted'] / row['drafted']:.1%}" if row.get("drafted") else ""
        forwards = f"{row['forwards_per_token']:.3f}" if side.llm is not None else ""
        said = f"{name:38} {faster} {row['tokens_per_second']:9.1f} {forwards:>15} {accepted:>9}"
        if "speed_of_grammar_off" in row:
            said += f"   {row['speed_of_grammar_off']['median']:.3f} of its speed without grammar"
        if "faster_than_theirs" in row:
            said += f"   {row['faster_than_theirs']['median']:.3f} times as fast as theirs"
        print(said if equal else f"{said}   TOKENS DIFFER")
    result = {"rows": given.rows, "prompts": given.prompts, "tokens": count, "sides": table}
    save(f"speculation_{given.rows}", result, given.json)


if __name__ == "__main__":
    own_process()
    main()
