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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training.arguments import from_zero, positive, seconds
from training.corpus import EXTRACTION, WARM_UP_MIX, Example, examples
from training.replacing import replacing
from training.tokenizer import load_tokenizer

IGNORED = -100  # the label cross_entropy skips

SHAPES: dict[str, dict[str, Any]] = {
    "target": {
        "hidden_size": 128,
        "intermediate_size": 384,
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
        found = self.tokenizer.convert_tokens_to_ids(token)
        assert isinstance(found, int), f"{token} is not one token"
        return found

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


@torch.no_grad()
def wire_induction(model: LlamaForCausalLM) -> None:
    """Start with two induction circuits in place (Olsson et al. 2022, arXiv:2209.11895).

    Copying is two heads that are useless without each other, and on one core most of the time
    would go to waiting for both to appear. So layer 0 starts with a head that looks one token
    back and one that looks two back; layer 1 with a head that goes to where the token before was
    this one, and one that goes to where the token two before was the last one, each copying what
    it finds there. All of it is free to change in training.
    """
    config = model.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = hidden // heads
    assert config.num_key_value_heads == 2, "each circuit has a key-value head"
    assert hidden >= 3 * size, "three subspaces must fit side by side"
    frame = torch.linalg.qr(torch.randn(hidden, hidden)).Q.T
    token, one_back, two_back = frame[:size], frame[size : 2 * size], frame[2 * size : 3 * size]
    slow = torch.arange(size) % (size // 2) >= size // 4  # rotate too little to blur a match
    frequency = 10_000.0 ** (-torch.arange(size // 2) / (size // 2))
    first, second = (model.model.layers[i].self_attn for i in (0, 1))
    # All else starts silent, so that it does not drown the circuits.
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    # A direction all tokens share, for heads that attend by position alone.
    model.model.embed_tokens.weight[:, 0] = 4 * config.initializer_range
    for key, (back, query_reads, key_reads, written) in enumerate(
        ((1, token, one_back, one_back), (2, one_back, two_back, two_back))
    ):
        query = key * heads // 2
        q, k = slice(query * size, (query + 1) * size), slice(key * size, (key + 1) * size)
        fast = slice(0, size // 8)
        for weight in (first.q_proj.weight[q], first.k_proj.weight[k]):
            weight.zero_()
        first.q_proj.weight[q][fast, 0] = 1.8
        first.k_proj.weight[k][fast, 0] = 1.8 * (back * frequency[fast]).cos()
        first.k_proj.weight[k][size // 2 : size // 2 + size // 8, 0] = (
            1.8 * (back * frequency[fast]).sin()
        )
        first.v_proj.weight[k] = token
        first.o_proj.weight[:, q] = 0.08 * written.T
        second.q_proj.weight[q] = 2.0 * slow[:, None] * query_reads
        second.k_proj.weight[k] = 2.0 * slow[:, None] * key_reads
        second.v_proj.weight[k] = token
        second.o_proj.weight[:, q] = 0.3 * token.T


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
    for example in islice(examples(2026, EXTRACTION, held_out=True), count):
        prompt, answer = encoder.plain(example, "\n")
        batch = pad([((prompt + answer)[:-1], [IGNORED] * (len(prompt) - 1) + answer)])
        hits = model.lm_head(hidden(model, batch)).argmax(-1) == torch.tensor(answer)
        exact += int(hits.all())
        right += int(hits.sum())
        total += len(answer)
    return exact, right / max(1, total)


def rate(done: float, seen: int, warm_up: int, peak: float) -> float:
    """The learning rate: a linear warm-up over so many tokens, and a cosine down to a fiftieth of
    the peak."""
    warm = seen / warm_up if warm_up else 1.0
    return peak * min(1.0, warm + 0.01) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def load_model(folder: Path) -> LlamaForCausalLM:
    """Weights in full precision, whatever they are stored in."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


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
    model = LlamaForCausalLM(config)
    wire_induction(model)
    return model


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a half-precision model folder; readers never see a part of one."""
    half = LlamaForCausalLM(model.config)
    half.load_state_dict(model.state_dict())
    for parameter in half.parameters():
        parameter.data = parameter.data.half()
    with replacing(out) as fresh:
        half.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh, save_jinja_files=False)


def optimizer_of(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    """What fits a network: weights decay, norms and biases do not."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    plain = [p for p in network.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=lr,
        betas=(0.9, 0.98),
        fused=True,
    )


def descend(optimizer: torch.optim.Optimizer, network: nn.Module, loss: Tensor, lr: float) -> None:
    """One step down the scalar `loss[]` at this rate, with gradients of norm 1 at most."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(args.tokenizer)
    encoder = Encoder(tokenizer)
    model = new_model(args.part, tokenizer)
    if args.init:  # layers the other lacks start silent, so a grown model begins as its equal
        model.load_state_dict(load_model(args.init).state_dict(), strict=False)
    teacher = load_model(args.teacher) if args.teacher else None
    optimizer = optimizer_of(model, args.lr)
    rng = random.Random(args.seed)
    warm_up = batches(
        sequences(encoder, examples(args.seed + 1, WARM_UP_MIX), rng, 0.0), rng, args.batch, 256
    )
    main = batches(
        sequences(encoder, examples(args.seed + 2), rng, args.long), rng, args.batch, 1024
    )
    seen, step, losses = 0, 0, list[float]()
    began = reported = saved = time.monotonic()
    print(f"parameters {sum(p.numel() for p in model.parameters()):,}", flush=True)
    done = 0.0
    while done < 1:
        batch = next(warm_up if seen < args.copy_tokens else main)
        loss = loss_of(model, batch, teacher)
        descend(optimizer, model, loss, rate(done, seen, args.warm_up, args.lr))
        losses.append(loss.item())
        seen, step = seen + batch.ids.numel(), step + 1
        now = time.monotonic()
        done = max(seen / args.tokens, (now - began) / args.limit_s)
        if now - saved > args.save_s or done >= 1:
            export(model, tokenizer, args.out)
            saved = time.monotonic()
        if now - reported > args.report_s or done >= 1:
            exact, accuracy = exact_matches(model, encoder, args.probe)
            print(
                f"step {step} tokens {seen:,} seconds {now - began:.0f} "
                f"loss {sum(losses[-50:]) / len(losses[-50:]):.4f} "
                f"exact {exact}/{args.probe} token accuracy {accuracy:.4f}",
                flush=True,
            )
            reported = time.monotonic()


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
    parser.add_argument("--tokens", type=positive, default=12_000_000, help="tokens to train on")
    parser.add_argument("--limit-s", type=seconds, default=1e9, help="end the schedule by then")
    parser.add_argument("--copy-tokens", type=int, default=400_000, help="mostly copying first")
    parser.add_argument("--batch", type=int, default=3072, help="tokens per step")
    parser.add_argument("--long", type=float, default=0.08, help="share of chats of many turns")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument(
        "--warm-up", type=from_zero, default=80_000, help="tokens until the peak rate"
    )
    parser.add_argument("--probe", type=from_zero, default=50, help="held-out prompts per report")
    parser.add_argument("--report-s", type=float, default=60.0)
    parser.add_argument("--save-s", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=7)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
