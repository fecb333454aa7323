"""The embedded model against transformers' `generate` and `generate_batch`.

The same mixed batch of prompts and lengths, greedy, float32, one torch thread on all sides. Tokens
of all must be equal, or the round counts for nothing; so the grammar of the sides with one is that
of any JSON object, which the answers to half of the prompts are anyway. `generate_batch` gets a
cache of the size that the work needs: its default takes its size from the machine's memory. Rounds
before the first that counts warm all sides up; ours record the shapes of their steps in them.

    python -m benchmarks.peers.embedded [--prompts 16] [--rounds 9] [--warm 12]
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from stepweave import LLM
from stepweave.models.source import resolve

from ..paired import Spread, at_least_one, own_process, save

NAMES = ["Nora Weber", "Ida Okoro", "Max Tanaka", "Lena Brandt"]
ASKS = [
    "Extract name, age, job and city as JSON: {} is a 47-year-old baker from Oslo.",
    "Write a short story about a fox named {}.",
    "Extract name and items as JSON: {} bought tea, bread and cheese.",
    "Is this review positive or negative? {} made a wonderful lamp!",
]
BLOCK = 16
LIMIT = 128


def work(count: int, tokenizer: Any) -> tuple[list[list[int]], list[int]]:
    """Prompts as token ids, and their limits. Answers end by themselves: some short, some long."""
    prompts, lengths = [], []
    for index in range(count):
        ask = ASKS[index % len(ASKS)].format(NAMES[index // len(ASKS) % len(NAMES)])
        message = [{"role": "user", "content": ask}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
        lengths.append(LIMIT)
    return prompts, lengths


def ours(
    prompts: Sequence[list[int]],
    lengths: Sequence[int],
    pipeline: str,
    *,
    grammar: bool = False,
    **overrides: str,
) -> Callable[[], Any]:
    """`grammar`: the answers that are JSON are held to be an object."""
    llm = LLM(pipeline=pipeline, overrides={"torch_threads": "1", **overrides})
    lines = []
    for index, length in enumerate(lengths):
        params: dict[str, Any] = {"max_tokens": length}
        if grammar and "JSON" in ASKS[index % len(ASKS)]:
            params["structured_outputs"] = {"json": {"type": "object"}}
        lines.append(params)
    return lambda: [list(output.token_ids) for output in llm.generate(prompts, lines)]


def one_by_one(model: Any, prompts: Sequence[list[int]], lengths: Sequence[int]) -> list[list[int]]:
    out = []
    for prompt, length in zip(prompts, lengths, strict=True):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                do_sample=False,
            )
        out.append(found[0, len(prompt) :].tolist())
    return out


def padded(
    model: Any, pad: int, prompts: Sequence[list[int]], lengths: Sequence[int]
) -> list[list[int]]:
    """All at once, padded on the left; every row runs as long as the longest."""
    widest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (widest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        found = model.generate(
            ids, attention_mask=mask, max_new_tokens=max(lengths), do_sample=False
        )
    return [row[widest : widest + n].tolist() for row, n in zip(found, lengths, strict=True)]


def continuous(model: Any, prompts: Sequence[list[int]], lengths: Sequence[int]) -> Any:
    """`generate_batch`: continuous batching, with the cache sized for the work."""
    size = "page_size" if "page_size" in _fields() else "block_size"
    blocks = sum(-(-(len(p) + n) // BLOCK) for p, n in zip(prompts, lengths, strict=True)) + 8
    wanted_cache: dict[str, Any] = {size: BLOCK}
    config = ContinuousBatchingConfig(
        num_blocks=blocks, max_batch_tokens=256, use_cuda_graph=False, **wanted_cache
    )
    eos = model.generation_config.eos_token_id
    made: Any = GenerationConfig
    wanted = made(do_sample=False, max_new_tokens=max(lengths), eos_token_id=eos, pad_token_id=eos)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate_batch(
            [list(p) for p in prompts],
            generation_config=wanted,
            continuous_batching_config=config,
            progress_bar=False,
        )
    rows = sorted(found.items(), key=lambda item: int(item[0].rsplit("_", 1)[1]))
    return [row.generated_tokens[:length] for (_, row), length in zip(rows, lengths, strict=True)]


def _fields() -> set[str]:
    return set(inspect.signature(ContinuousBatchingConfig).parameters)


def until_eos(tokens: Sequence[int], eos: int) -> list[int]:
    found = list(tokens)
    return found[: found.index(eos) + 1] if eos in found else found


def sides_of(prompts: Sequence[list[int]], lengths: Sequence[int], pad: int) -> dict[str, Any]:
    """Every way to decode the batch; the first is what the others are compared with."""
    auto: Any = AutoModelForCausalLM
    directory = resolve("embedded")
    plain = auto.from_pretrained(directory, dtype=torch.float32).eval()
    batched = auto.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    free: dict[str, Any] = {"model.invariant": "false"}
    return {
        "stepweave, async + speculation": ours(prompts, lengths, "async_speculation"),
        "the same, arithmetic not invariant": ours(prompts, lengths, "async_speculation", **free),
        "stepweave, async": ours(prompts, lengths, "async"),
        "stepweave, async, not invariant": ours(prompts, lengths, "async", **free),
        "stepweave, async_grammar, with a grammar": ours(
            prompts, lengths, "async_grammar", grammar=True
        ),
        "stepweave, synchronous": ours(prompts, lengths, "synchronous"),
        "stepweave, quickstart": ours(prompts, lengths, "quickstart"),
        "stepweave, quickstart, with a grammar": ours(prompts, lengths, "quickstart", grammar=True),
        "transformers generate, one by one": lambda: one_by_one(plain, prompts, lengths),
        "transformers generate, padded batch": lambda: padded(plain, pad, prompts, lengths),
        "transformers generate_batch": lambda: continuous(batched, prompts, lengths),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=at_least_one, default=16)
    parser.add_argument("--rounds", type=at_least_one, default=9)
    parser.add_argument("--warm", type=at_least_one, default=12, help="rounds before, not counted")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(resolve("embedded"))
    prompts, lengths = work(given.prompts, tokenizer)
    eos = int(tokenizer.eos_token_id)
    sides = sides_of(prompts, lengths, int(tokenizer.pad_token_id))
    found: dict[str, list[list[int]]] = {}
    for _ in range(given.warm):
        found = {name: [until_eos(row, eos) for row in side()] for name, side in sides.items()}
    expected = found["transformers generate, one by one"]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(given.rounds):
        names = list(sides) if turn % 2 == 0 else list(reversed(sides))
        for name in names:
            started = perf_counter()
            sides[name]()
            seconds[name].append(perf_counter() - started)
    first = next(iter(sides))
    tokens = sum(map(len, expected))
    print(f"{given.prompts} prompts, {tokens} tokens; slower by, median of paired ratios")
    table = {}
    for name, took in seconds.items():
        ratio = Spread.of([b / a for a, b in zip(seconds[first], took, strict=True)])
        rate, equal = tokens / Spread.of(took).median, found[name] == expected
        table[name] = {
            "slower_by": vars(ratio),
            "tokens_per_second": rate,
            "tokens_equal": equal,
        }
        print(f"{name:42} {ratio}   {rate:8.1f} tokens/s   tokens equal: {equal}")
    save("peers", {"prompts": given.prompts, "tokens": tokens, "sides": table}, given.json)


if __name__ == "__main__":
    own_process()
    main()
