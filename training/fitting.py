"""The loop that fits whatever drafts for the embedded target, and what its commands share."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from training.arguments import from_zero, positive
from training.corpus import examples
from training.measuring import Drafted, continued, measure, table
from training.tokenizer import load_tokenizer
from training.train import (
    Batch,
    Encoder,
    batches,
    descend,
    load_model,
    optimizer_of,
    rate,
    sequences,
)


@dataclass(frozen=True)
class Fitted:
    """What is fitted: its parameters, its loss over a batch, what it drafts, how it is written."""

    network: nn.Module
    loss: Callable[[Batch], Tensor]
    drafted: Drafted
    write: Callable[[], None]


def load(args: argparse.Namespace) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The target, frozen, and its tokenizer, with seeds set."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    target = load_model(args.target)
    target.requires_grad_(False)
    return target, load_tokenizer(args.target)


def fit(
    args: argparse.Namespace,
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    fitted: Fitted,
) -> None:
    """Train on so many tokens; report and write now and then, and at the end."""
    network = fitted.network
    texts = continued(target, tokenizer, args.probe, args.probe // 4, seed=2026)
    optimizer = optimizer_of(network, args.lr)
    rng = random.Random(args.seed)
    pool = sequences(Encoder(tokenizer), examples(args.seed + 3), rng, args.long)
    stream = batches(pool, rng, args.batch, 1024)
    seen, step, losses = 0, 0, list[float]()
    began = reported = time.monotonic()
    print(f"parameters {sum(p.numel() for p in network.parameters()):,}", flush=True)
    while seen < args.tokens:
        batch = next(stream)
        loss = fitted.loss(batch)
        lr = rate(seen / args.tokens, seen, args.warm_up, args.lr)
        descend(optimizer, network, loss, lr)
        losses.append(loss.item())
        seen, step = seen + batch.ids.numel(), step + 1
        now = time.monotonic()
        if now - reported > args.report_s or seen >= args.tokens:
            fitted.write()
            rates = measure(fitted.drafted, texts)["all"].rates()
            print(
                f"step {step} tokens {seen:,} seconds {now - began:.0f} "
                f"loss {sum(losses[-50:]) / len(losses[-50:]):.4f} "
                f"accepted {' '.join(f'{rate:.3f}' for rate in rates)}",
                flush=True,
            )
            reported = time.monotonic()


def evaluate(args: argparse.Namespace, drafted_by: Callable[[LlamaForCausalLM], Drafted]) -> None:
    """Print the table of what was written, on seeds that training did not report."""
    target, tokenizer = load(args)
    texts = continued(target, tokenizer, args.prompts, args.stories, args.eval_seed)
    print(table(measure(drafted_by(target), texts)))


def parser_for(what: str, example: str) -> argparse.ArgumentParser:
    """The options that all have."""
    parser = argparse.ArgumentParser(
        description=f"Train {what} for a target; with --evaluate, only measure one.",
        epilog=f"example: {example}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--target", type=Path, default=Path("models/embedded/target"))
    parser.add_argument("--out", type=Path, required=True, help="folder to write or measure")
    parser.add_argument("--tokens", type=positive, default=1_000_000, help="tokens to train on")
    parser.add_argument("--batch", type=int, default=1024, help="tokens per optimizer step")
    parser.add_argument("--long", type=float, default=0.05, help="share of chats of many turns")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument(
        "--warm-up", type=from_zero, default=20_000, help="tokens until the peak rate"
    )
    parser.add_argument("--probe", type=from_zero, default=24, help="held-out prompts per report")
    parser.add_argument("--report-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--evaluate", action="store_true", help="train nothing; print a table")
    parser.add_argument("--prompts", type=int, default=200, help="extractions to evaluate on")
    parser.add_argument("--stories", type=int, default=50, help="stories to evaluate on")
    parser.add_argument("--eval-seed", type=int, default=4052)
    return parser
