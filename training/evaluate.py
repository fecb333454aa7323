"""Measure the embedded model on prompts whose words training never showed.

Three numbers: extractions answered exactly, stories that keep to their name and animal, and how
many drafted tokens the target accepts.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import xgrammar as xgr
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from training.corpus import EXTRACTION, Example, examples, story
from training.tokenizer import load_tokenizer
from training.train import load_model


@dataclass
class Acceptance:
    """Drafted and accepted tokens over a number of steps."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        return self.accepted / max(1, self.drafted)

    @property
    def tokens_per_step(self) -> float:
        """Accepted tokens and the one the target adds itself."""
        return (self.accepted + self.steps) / max(1, self.steps)

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.steps + other.steps,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    def count(self, agrees: list[bool], k: int) -> None:
        """Replay one answer, given where the drafter's argmax is the target's token.

        Drafts are chained, each on top of the last; but a draft only counts while all before it
        were right, and then its prefix is the target's own. So agreement on the target's text
        says exactly what chained drafting would have done. Drafts past the end count as drafted.
        """
        position = 0
        while position < len(agrees):
            run = 0
            while run < k and position + run < len(agrees) and agrees[position + run]:
                run += 1
            self.steps += 1
            self.drafted += k
            self.accepted += run
            position += run + 1


class Schemas:
    """Grammars that leave the values open: what a caller who knows the fields would send."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        info = xgr.TokenizerInfo.from_huggingface(tokenizer)
        self.compiler = xgr.GrammarCompiler(info, max_threads=1)

    def matcher(self, example: Example) -> xgr.GrammarMatcher:
        schema = schema_of(json.loads(example.answer))
        grammar = self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
        return xgr.GrammarMatcher(grammar)


def schema_of(value: object) -> dict[str, object]:
    """The narrowest JSON schema that says the types of a value and nothing of its content."""
    match value:
        case dict():
            return {
                "type": "object",
                "properties": {key: schema_of(part) for key, part in value.items()},
                "required": list(value),
                "additionalProperties": False,
            }
        case list():
            return {"type": "array", "items": {"type": "string"}}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case _:
            return {"type": "string"}


@torch.no_grad()
def answer(
    model: LlamaForCausalLM,
    prompt: Tensor,
    limit: int,
    matcher: xgr.GrammarMatcher | None = None,
) -> Tensor:
    """The greedy continuation of a prompt, with its end token; what a grammar allows, if given."""
    tokens: list[Tensor] = []
    fresh, cache = prompt[None], DynamicCache()
    bitmask = xgr.allocate_token_bitmask(1, model.config.vocab_size)
    while len(tokens) < limit:
        logits = model(fresh, past_key_values=cache, use_cache=True).logits[:, -1]
        if matcher is not None:
            matcher.fill_next_token_bitmask(bitmask)
            xgr.apply_token_bitmask_inplace(logits, bitmask)
        fresh = logits.argmax(-1, keepdim=True)
        tokens.append(fresh[0])
        if fresh.item() == model.config.eos_token_id:
            break
        if matcher is not None:
            accepted = matcher.accept_token(int(fresh))
            assert accepted, "the grammar refused a token its own mask allowed"
    return torch.cat(tokens)


@torch.no_grad()
def agreement(model: LlamaForCausalLM, prompt: Tensor, answer: Tensor) -> list[bool]:
    """Per answer token: is it what the model, having read all before it, would choose?"""
    logits = model(torch.cat((prompt, answer))[None]).logits[0, len(prompt) - 1 : -1]
    hits: list[bool] = (logits.argmax(-1) == answer).tolist()
    return hits


def encode(tokenizer: PreTrainedTokenizerFast, example: Example, chat: bool) -> Tensor:
    """The prompt as a completion request or as a chat would send it."""
    if chat:
        messages = [{"role": "user", "content": example.prompt}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False).input_ids
    else:
        ids = tokenizer(example.prompt + "\n").input_ids
    return torch.tensor(ids)


def evaluate(args: argparse.Namespace) -> dict[str, float | int | str]:
    torch.set_num_threads(args.threads)
    tokenizer = load_tokenizer(args.target)
    target = load_model(args.target)
    draft = load_model(args.draft) if args.draft else None
    extractions = list(islice(examples(args.seed, EXTRACTION, held_out=True), args.prompts))
    stories = list(islice(examples(args.seed + 1, {story: 1}, held_out=True), args.stories))
    kinds = {"extraction": Acceptance(), "story": Acceptance()}
    schemas = Schemas(tokenizer)
    exact, exact_in_schema, faithful = 0, 0, 0
    wrong: Counter[str] = Counter()
    for number, example in enumerate(extractions + stories):
        prompt = encode(tokenizer, example, chat=number % 2 == 1)
        wanted = tokenizer(example.answer, add_special_tokens=False).input_ids
        tokens = torch.tensor([*wanted, tokenizer.eos_token_id])
        # If every token of the right answer is the argmax after those before it, greedy decoding
        # yields just that answer, grammar or not, and one pass has told so.
        foreseen = all(agreement(target, prompt, tokens))
        if not foreseen:
            tokens = answer(target, prompt, args.limit)
        text = str(tokenizer.decode(tokens, skip_special_tokens=True))
        if example.task == "story":
            kind = "story"
            faithful += all(word in text for word in example.mentions)
        else:
            kind = "extraction"
            exact += text == example.answer
            held_text = text
            if not foreseen:
                held = answer(target, prompt, args.limit, schemas.matcher(example))
                held_text = str(tokenizer.decode(held, skip_special_tokens=True))
            exact_in_schema += held_text == example.answer
            if text != example.answer:
                wrong[example.task] += 1
                if args.show_wrong:
                    print(f"prompt  {example.prompt}\nwanted  {example.answer}")
                    print(f"got     {text}\nschema  {held_text}\n")
        if draft is not None:
            kinds[kind].count(agreement(draft, prompt, tokens), args.k)
    result: dict[str, float | int | str] = {
        "extraction_exact": f"{exact}/{len(extractions)}",
        "extraction_exact_under_schema": f"{exact_in_schema}/{len(extractions)}",
        "extraction_wrong_by_task": json.dumps(wrong),
        "stories_faithful": f"{faithful}/{len(stories)}",
    }
    if draft is not None:
        mixed = kinds["extraction"] + kinds["story"]
        for name, acceptance in {**kinds, "mixed": mixed}.items():
            result[f"{name}_acceptance"] = round(acceptance.rate, 4)
            result[f"{name}_tokens_per_step"] = round(acceptance.tokens_per_step, 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure exact extraction, stories and draft acceptance on held-out words.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--target", type=Path, required=True, help="model folder")
    parser.add_argument("--draft", type=Path, help="drafter folder; without it no acceptance")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--stories", type=int, default=50)
    parser.add_argument("--k", type=int, default=3, help="tokens drafted per step")
    parser.add_argument("--limit", type=int, default=200, help="most tokens of an answer")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show-wrong", action="store_true", help="print every wrong answer")
    print(json.dumps(evaluate(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
