"""Train the target or the drafter of the embedded model on one CPU core.

Two choices decide whether so small a model learns to copy, and so to extract. The loss counts
answer tokens only: prompts are mostly random words, which nothing can predict. And every
sequence is one example (now and then a few, as turns of a chat), so all attention a token can
pay goes to its own prompt.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training.corpus import EXTRACTION, WARM_UP_MIX, Example, examples

IGNORED = -100  # the label cross_entropy skips

SHAPES: dict[str, dict[str, int]] = {
    "target": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    # Two layers: copying needs one to find what came before and one to use it.
    "draft": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


@dataclass(frozen=True)
class Batch:
    """Token ids and labels, right-padded: causal attention never looks at the padding."""

    ids: Tensor  # [row, position]
    labels: Tensor  # [row, position], already shifted: labels[i] is the token after ids[i]


class Encoder:
    """Turns examples into tokens the way a server will: the prompt alone, then the answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def special(self, token: str) -> int:
        """The id of a special token."""
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def plain(self, example: Example, separator: str) -> tuple[list[int], list[int]]:
        """A completion prompt and its answer."""
        prompt = [self.special("<|bos|>"), *self.ids(example.prompt + separator)]
        return prompt, [*self.ids(example.answer), self.special("<|eos|>")]

    def turn(self, example: Example) -> tuple[list[int], list[int]]:
        """One exchange of a chat, as the chat template spells it after its `<|bos|>`."""
        prompt = [
            self.special("<|user|>"),
            *self.ids(example.prompt),
            self.special("<|assistant|>"),
        ]
        return prompt, [*self.ids(example.answer), self.special("<|eos|>")]


SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer in JSON.",
    "You are a tiny model.",
    "Be brief.",
)


def sequences(
    encoder: Encoder, stream: Iterator[Example], rng: random.Random, long: float
) -> Iterator[tuple[list[int], list[int]]]:
    """Ids and shifted labels of one sequence after another."""
    for first in stream:
        ids: list[int] = []
        labels: list[int] = []

        def add(
            prompt: list[int], answer: list[int], ids: list[int] = ids, labels: list[int] = labels
        ) -> None:
            ids.extend(prompt + answer)
            labels.extend([IGNORED] * len(prompt) + answer)

        if rng.random() < 0.6:
            add(*encoder.plain(first, rng.choice(("\n", "\n", "", " "))))
            if rng.random() < 0.1:  # some callers add no <|bos|>
                del ids[0], labels[0]
        else:
            ids.append(encoder.special("<|bos|>"))
            labels.append(IGNORED)
            if rng.random() < 0.15:
                system = encoder.ids(rng.choice(SYSTEM_PROMPTS))
                add([encoder.special("<|system|>"), *system], [])
            add(*encoder.turn(first))
            if rng.random() < long:
                room = rng.choice((200, 320, 512))
                while True:
                    prompt, answer = encoder.turn(next(stream))
                    if len(ids) + len(prompt) + len(answer) > room:
                        break
                    add(prompt, answer)
        yield ids[:-1], labels[1:]


def batches(
    pool: Iterator[tuple[list[int], list[int]]], rng: random.Random, tokens: int, pool_size: int
) -> Iterator[Batch]:
    """Rows of like length together, so hardly a token is padding; batches in random order."""
    while True:
        rows = sorted(islice(pool, pool_size), key=lambda row: len(row[0]))
        if not rows:
            return
        groups: list[list[tuple[list[int], list[int]]]] = [[]]
        for row in rows:
            if (len(groups[-1]) + 1) * len(row[0]) > tokens and groups[-1]:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        for group in groups:
            yield pad(group)


def pad(rows: list[tuple[list[int], list[int]]]) -> Batch:
    width = max(len(ids) for ids, _ in rows)
    return Batch(
        torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows]),
        torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows]),
    )


def hidden(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Final hidden states where there is a label: logits elsewhere would be thrown away."""
    states: Tensor = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return states[batch.labels != IGNORED]


def loss_of(model: LlamaForCausalLM, batch: Batch, teacher: LlamaForCausalLM | None) -> Tensor:
    """Cross-entropy with the answer or, given a teacher, mostly with its distribution.

    A drafter is judged by agreeing with the target, not by being right.
    """
    logits = model.lm_head(hidden(model, batch))
    gold = functional.cross_entropy(logits, batch.labels[batch.labels != IGNORED])
    if teacher is None:
        return gold
    with torch.no_grad():
        wanted = teacher.lm_head(hidden(teacher, batch)).softmax(-1)
    return 0.8 * functional.cross_entropy(logits, wanted) + 0.2 * gold


@torch.no_grad()
def exact_matches(model: LlamaForCausalLM, encoder: Encoder, count: int) -> tuple[int, float]:
    """How many of `count` held-out extractions greedy decoding would get exactly right.

    One pass over the right answers is enough: greedy decoding yields the answer if and only if
    every one of its tokens is the argmax after the tokens before it.
    """
    exact, right, total = 0, 0, 0
    model.eval()
    for example in islice(examples(2026, EXTRACTION, held_out=True), count):
        prompt, answer = encoder.plain(example, "\n")
        batch = pad([((prompt + answer)[:-1], [IGNORED] * (len(prompt) - 1) + answer)])
        hits = model.lm_head(hidden(model, batch)).argmax(-1) == torch.tensor(answer)
        exact += int(hits.all())
        right += int(hits.sum())
        total += len(answer)
    model.train()
    return exact, right / total


def rate(seen: int, total: int, peak: float, warm_up: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if seen < warm_up:
        return peak * (seen + 1) / warm_up
    done = min(1.0, (seen - warm_up) / max(1, total - warm_up))
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def new_model(part: str, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.04,
        rms_norm_eps=1e-5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SHAPES[part],
    )
    return LlamaForCausalLM(config)


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a half-precision model folder; readers see the old one or the new, never a part."""
    fresh, old = out.with_name(out.name + ".new"), out.with_name(out.name + ".old")
    shutil.rmtree(fresh, ignore_errors=True)
    half = LlamaForCausalLM(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(fresh)
    tokenizer.save_pretrained(fresh, save_jinja_files=False)
    for file in fresh.iterdir():
        file.chmod(0o644)
    if out.exists():
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    encoder = Encoder(tokenizer)
    if args.init:
        model = LlamaForCausalLM.from_pretrained(args.init, dtype=torch.float32)
    else:
        model = new_model(args.part, tokenizer)
    teacher = None
    if args.teacher:
        teacher = LlamaForCausalLM.from_pretrained(args.teacher, dtype=torch.float32).eval()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
        fused=True,
    )

    rng = random.Random(args.seed)
    warm_up = batches(
        sequences(encoder, examples(args.seed + 1, WARM_UP_MIX), rng, 0.0), rng, args.batch, 256
    )
    main = batches(
        sequences(encoder, examples(args.seed + 2), rng, args.long), rng, args.batch, 1024
    )
    seen, step, losses = 0, 0, [0.0]
    began = reported = saved = time.monotonic()
    print(f"parameters {sum(p.numel() for p in model.parameters()):,}", flush=True)
    while seen < args.tokens:
        batch = next(warm_up if seen < args.copy_tokens else main)
        for group in optimizer.param_groups:
            group["lr"] = rate(seen, args.tokens, args.lr, args.warm_up)
        loss = loss_of(model, batch, teacher)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seen, step = seen + batch.ids.numel(), step + 1
        now = time.monotonic()
        if now - reported > args.report_s or seen >= args.tokens:
            exact, accuracy = exact_matches(model, encoder, args.probe)
            print(
                f"step {step} tokens {seen:,} seconds {now - began:.0f} "
                f"loss {sum(losses[-50:]) / len(losses[-50:]):.4f} "
                f"exact {exact}/{args.probe} token accuracy {accuracy:.4f}",
                flush=True,
            )
            reported = time.monotonic()
        if now - saved > args.save_s or seen >= args.tokens:
            export(model, tokenizer, args.out)
            saved = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train one part of the embedded model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("part", choices=tuple(SHAPES))
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--init", type=Path, help="start from these weights")
    parser.add_argument("--teacher", type=Path, help="model folder to agree with")
    parser.add_argument("--tokens", type=int, default=12_000_000, help="tokens to train on")
    parser.add_argument("--copy-tokens", type=int, default=1_000_000, help="copying first")
    parser.add_argument("--batch", type=int, default=4096, help="tokens per step")
    parser.add_argument("--long", type=float, default=0.08, help="share of chats of many turns")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=400_000, help="tokens until the peak rate")
    parser.add_argument("--probe", type=int, default=50, help="held-out prompts per report")
    parser.add_argument("--report-s", type=float, default=60.0)
    parser.add_argument("--save-s", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=7)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
