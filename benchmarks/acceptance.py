"""How many drafts each acceptance rule keeps, by temperature: the figures behind the default rule.

The embedded pair decodes in a plain loop on the models of transformers, outside the engine, with
the engine's own rules and sampling. A way is a rule and how the drafter chooses: its best token, a
draw with noise of its own, or a draw with the noise that the target will use.

    python -m benchmarks.acceptance [--prompts 40] [--k 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from stepweave.policies.acceptance import ACCEPTANCE
from stepweave.policies.noise import Purpose
from stepweave.policies.sampling import draw, filtered_log_probs
from training.corpus import EXTRACTION, Task, examples, story
from training.evaluate import encode
from training.tokenizer import load_tokenizer
from training.train import load_model

from .paired import save

EMBEDDED = Path(__file__).parents[1] / "models" / "embedded"
DOCS = Path(__file__).parents[1] / "docs"
SEED = 3
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
    """Drafts kept by each step of a number of requests."""

    steps: list[int] = field(default_factory=list)

    @property
    def accepted(self) -> float:
        return float(fmean(self.steps))

    @property
    def first(self) -> float:
        """How often the draft at the first place is kept."""
        return fmean(kept > 0 for kept in self.steps)

    @property
    def error(self) -> float:
        """Standard error of `accepted`."""
        return float(stdev(self.steps) / len(self.steps) ** 0.5)

    def to_json(self) -> dict[str, float]:
        return {
            "accepted_per_step": round(self.accepted, 4),
            "standard_error": round(self.error, 4),
            "first_accepted": round(self.first, 4),
            "steps": len(self.steps),
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


@torch.inference_mode()
def decode(
    target: LlamaForCausalLM,
    drafter: LlamaForCausalLM,
    prompt: list[int],
    way: Way,
    temperature: float,
    k: int,
    limit: int,
    seed: int,
) -> Kept:
    """One request to its end or `limit` tokens, with the drafts that each step kept."""
    tokens, kept = list(prompt), Kept()
    readers = Reader(target), Reader(drafter)
    seeds, greedy = torch.tensor([seed]), torch.tensor([temperature == 0])

    def distribution(logits: Tensor) -> Tensor:
        rows = len(logits)
        off = torch.zeros(rows, dtype=torch.int64)
        return filtered_log_probs(
            logits,
            torch.full((rows,), temperature),
            off,
            torch.ones(rows),
            any_top_k=False,
            any_top_p=False,
        )

    while len(tokens) < len(prompt) + limit:
        position = torch.tensor([len(tokens) - len(prompt)])
        window, drawn_from = list(tokens), []
        for place in range(k):
            q = distribution(readers[1].logits(window)[-1:])
            drawn_from.append(q)
            best = greedy if way.noise is not None else torch.tensor([True])
            purpose = way.noise if way.noise is not None else Purpose.DRAFT
            window.append(int(draw(q, seeds, position + place, best, purpose)))
        drafts = torch.tensor([window[len(tokens) :]])
        verified = ACCEPTANCE[way.rule](
            distribution(readers[0].logits(window)[-k - 1 :])[None],
            drafts,
            torch.tensor([k]),
            seeds,
            position,
            greedy,
            torch.stack(drawn_from, dim=1) if way.noise is not None else None,
        )
        settled = verified.tokens[0, : int(verified.counts)].tolist()
        accepted = len(settled) - 1
        ended = target.config.eos_token_id in settled
        if ended:
            accepted = min(accepted, settled.index(target.config.eos_token_id) + 1)
        kept.steps.append(accepted)
        if ended:
            break
        tokens += settled
        for reader in readers:
            reader.forget(len(tokens) - 1)
    return kept


def measure(prompts: dict[str, list[list[int]]], k: int, limit: int) -> list[dict[str, Any]]:
    """Every way at every temperature: one line of the table each."""
    target, drafter = (load_model(EMBEDDED / part) for part in ("target", "draft"))
    lines = []
    for temperature in TEMPERATURES:
        for way in WAYS if temperature else (GREEDY,):
            line: dict[str, Any] = {"temperature": temperature, "way": way.name}
            for kind, some in prompts.items():
                kept = Kept()
                for number, prompt in enumerate(some):
                    kept.steps += decode(
                        target, drafter, prompt, way, temperature, k, limit, number
                    ).steps
                line[kind] = kept.to_json()
            lines.append(line)
            print(as_row(line), flush=True)
    return lines


def as_row(line: dict[str, Any]) -> str:
    cells = [f"{line['temperature']:<12}{line['way']:<24}"]
    for each in line.values():
        if isinstance(each, dict):
            cells.append(
                f"{each['accepted_per_step']:>9.2f} ± {each['standard_error']:.2f}"
                f"{each['first_accepted']:>8.2f}"
            )
    return "".join(cells)


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
    paragraphs = [
        paragraph.split()
        for page in sorted(DOCS.glob("*.md"))
        for paragraph in page.read_text(encoding="utf-8").split("\n\n")
        if paragraph[:1].isalpha() and len(paragraph.split()) > PROSE
    ]
    prompts["prose"] = [
        list(tokenizer(" ".join(words[:PROSE])).input_ids) for words in paragraphs[:count]
    ]
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompts", type=int, default=40, help="of each kind")
    parser.add_argument("--k", type=int, default=3, help="drafts per step")
    parser.add_argument("--limit", type=int, default=80, help="most tokens of an answer")
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
