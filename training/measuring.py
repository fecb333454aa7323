"""How many drafts would be accepted, of what drafts for the embedded target: without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from training.corpus import EXTRACTION, examples, story
from training.evaluate import answer, encode

DRAFTS = 3  # tokens of a draft that are measured

Drafted = Callable[[Tensor], Iterator[Tensor]]
"""Of `ids[1, T]`, the tokens `[1, T']` of each draft in turn, drafted at each of the starts 0 …
T' − 1 as if every draft before had been right; draft j of start t is of token t + 2 + j."""


@dataclass
class Conditional:
    """Drafts tried and accepted per position of the draft, those before it being right."""

    tried: list[int] = field(default_factory=lambda: [0] * DRAFTS)
    right: list[int] = field(default_factory=lambda: [0] * DRAFTS)
    steps: int = 0
    tokens: int = 0

    def replay(self, agrees: Tensor) -> None:
        """Decode one answer. `agrees[start, draft]`: is that draft the target's own token?

        A draft is only tried while all before it were right, and then it is a chain on the
        target's own tokens: so agreement along those says what drafting would have done. Drafts
        past the end of the answer are not counted.
        """
        rows: list[list[bool]] = agrees.tolist()
        start = 0
        while start < len(rows):
            run = 0
            while run < DRAFTS and start + run < len(rows):
                self.tried[run] += 1
                if not rows[start][run]:
                    break
                self.right[run] += 1
                run += 1
            self.steps += 1
            self.tokens += run + 1
            start += run + 1

    def rates(self) -> list[float]:
        return [right / max(1, tried) for right, tried in zip(self.right, self.tried, strict=True)]

    def __add__(self, other: Conditional) -> Conditional:
        return Conditional(
            [a + b for a, b in zip(self.tried, other.tried, strict=True)],
            [a + b for a, b in zip(self.right, other.right, strict=True)],
            self.steps + other.steps,
            self.tokens + other.tokens,
        )


@dataclass(frozen=True)
class Continued:
    """A held-out prompt and the target's greedy answer to it."""

    kind: str  # extraction or story
    form: str  # completion or chat
    prompt: Tensor
    answer: Tensor


def continued(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: int,
    stories: int,
    seed: int,
    limit: int = 200,
) -> list[Continued]:
    """The target's greedy answers to prompts of held-out words, every other one as a chat."""
    wanted = [
        *(
            ("extraction", each)
            for each in islice(examples(seed, EXTRACTION, held_out=True), prompts)
        ),
        *(
            ("story", each)
            for each in islice(examples(seed + 1, {story: 1}, held_out=True), stories)
        ),
    ]
    found = []
    for number, (kind, example) in enumerate(wanted):
        chat = number % 2 == 1
        prompt = encode(tokenizer, example, chat)
        form = "chat" if chat else "completion"
        found.append(Continued(kind, form, prompt, answer(target, prompt, limit)))
    return found


def table(found: dict[str, Conditional]) -> str:
    """Markdown: a row per kind of prompt."""
    lines = [
        "| prompts | 1st | 2nd | 3rd | tokens per step |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, each in found.items():
        rates = " | ".join(f"{rate:.1%}".replace("%", " %") for rate in each.rates())
        lines.append(f"| {name} | {rates} | {each.tokens / max(1, each.steps):.2f} |")
    return "\n".join(lines)


@torch.no_grad()
def measure(drafted: Drafted, texts: list[Continued]) -> dict[str, Conditional]:
    """Acceptance by kind of prompt and by form, and of all."""
    found = {name: Conditional() for name in ("extraction", "story", "completion", "chat", "all")}
    for text in texts:
        ids = torch.cat((text.prompt, text.answer))[None]
        # The first draft is of the second answer token: the first is what the target just said.
        begin, starts = len(text.prompt) - 1, len(text.answer) - 1
        agrees = torch.zeros(starts, DRAFTS, dtype=torch.bool)
        for draft, tokens in enumerate(islice(drafted(ids), DRAFTS)):
            said = ids[0, begin + 2 + draft :]
            agrees[: len(said), draft] = tokens[0, begin : begin + len(said)] == said
        result = Conditional()
        result.replay(agrees)
        for name in (text.kind, text.form, "all"):
            found[name] += result
    return found
