"""What a KV cache in 8 bits changes: distributions of the next token, greedy texts, right answers.

The embedded model in float32, on extraction prompts with held-out words and on stories. Each text
is what the model writes with a cache of float32; every format then reads the same text, so that
distributions of one position are of one prefix. Nothing here is timed.

    python -m benchmarks.kv_cache_error [--prompts 48]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from stepweave import LLM
from stepweave.models.attention import AttentionBatch
from stepweave.models.cache_dtype import CacheDType
from stepweave.models.causal_lm import CausalLM
from training.corpus import examples, story

from .embedded import as_line, held_out
from .paired import at_least_one, save

BLOCK = 16
STORY, LIMIT = 96, 160
"""Tokens: of a story, of any text."""
SEED = 5


def log_probs(model: CausalLM, ids: Sequence[int], kept: CacheDType) -> Tensor:
    """`[T, V]` float64: of the token after each of `ids`, read through a cache of that format."""
    blocks = -(-len(ids) // BLOCK)
    at = torch.arange(len(ids))
    batch = AttentionBatch(
        query_lens=(len(ids),),
        block_tables=torch.arange(1, blocks + 1)[None],
        positions=at,
        slots=at + BLOCK,  # block 0 is the scratch block
        cache=model.new_cache(blocks + 1, BLOCK, kept),
    )
    logits, _ = model.forward(torch.tensor(list(ids)), batch)
    return logits.double().log_softmax(dim=-1)


def difference(exact: Tensor, found: Tensor, tokens: Sequence[int]) -> dict[str, Tensor]:
    """By position, of `exact[T, V]` and `found[T, V]`: what each says of the next of `tokens`."""
    exact, found = exact[:-1], found[:-1]
    written = torch.tensor(list(tokens[1:]))[:, None]
    return {
        "kl": (exact.exp() * (exact - found)).sum(dim=-1),
        "log_prob": (exact.gather(1, written) - found.gather(1, written)).abs()[:, 0],
        "same_best": (exact.argmax(dim=-1) == found.argmax(dim=-1)).double(),
    }


def written(prompts: int, kept: str, limit: int) -> tuple[list[list[int]], list[list[int]], int]:
    """Prompts and greedy outputs of up to `limit` tokens, and how many extractions are right."""
    asked = held_out(prompts)
    told = islice(examples(SEED, {story: 1}, held_out=True), prompts)
    lines = [as_line(each) for each in asked]
    lines += [{"prompt": each.prompt, "max_tokens": STORY} for each in told]
    lines = [{**line, "max_tokens": min(line["max_tokens"], limit)} for line in lines]
    with LLM(pipeline="quickstart", overrides={"model.kv_cache_dtype": kept}) as llm:
        outputs = llm.generate(lines)
        read = llm.service.intake.prompts
        encoded = [list(read.encode(read.read(line, "")).ids) for line in lines]
    right = sum(o.text == e.answer for o, e in zip(outputs, asked, strict=False))
    return encoded, [list(each.token_ids) for each in outputs], right


def measured(prompts: int, limit: int) -> dict[str, Any]:
    """For each format in 8 bits, what differs from the cache in the model's own precision."""
    model = CausalLM.load("embedded")
    asked, texts, right = written(prompts, "auto", limit)
    found: dict[str, Any] = {"texts": len(texts), "auto": {"extractions_exact": right}}
    for kept in get_args(CacheDType)[1:]:
        each: dict[str, list[Tensor]] = {}
        for prompt, text in zip(asked, texts, strict=True):
            ids = [*prompt, *text]
            pair = (log_probs(model, ids, "auto"), log_probs(model, ids, kept))
            for name, values in difference(*pair, ids).items():
                each.setdefault(name, []).append(values[len(prompt) - 1 :])
        whole = {name: torch.cat(values) for name, values in each.items()}
        _, others, exactly = written(prompts, kept, limit)
        found[kept] = {
            "tokens": len(whole["kl"]),
            "mean_kl": whole["kl"].mean().item(),
            "largest_kl": whole["kl"].max().item(),
            "mean_log_prob_difference": whole["log_prob"].mean().item(),
            "largest_log_prob_difference": whole["log_prob"].max().item(),
            "same_best_token": whole["same_best"].mean().item(),
            "same_greedy_texts": sum(a == b for a, b in zip(texts, others, strict=True))
            / len(texts),
            "extractions_exact": exactly,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=at_least_one, default=48, help="of each kind")
    parser.add_argument("--limit", type=at_least_one, default=LIMIT, help="tokens of a text")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = measured(given.prompts, given.limit)
    print(json.dumps(result, indent=2))
    save("kv_cache_error", result, given.json)


if __name__ == "__main__":
    main()
