"""Train an EAGLE or EAGLE-3 head for a target, on one CPU core, and measure what it drafts.

A head at position t reads the target's hidden state of token t and the embedding of token t + 1,
and predicts token t + 2. *Unrolling* by one step feeds it its own output in place of the hidden
state of token t + 1, which a drafter has to do because the target has not seen that token yet.

* `eagle3` (arXiv:2503.01840): unrolled while training ("training-time test"); the loss is the
  cross-entropy with the target's own distribution, a step weighing 0.8 of the one before.
* `eagle` (arXiv:2401.15077): one step; the loss is the smooth L1 distance to the target's next
  hidden state plus that cross-entropy (a tenth of it in the paper, which was too little for a
  target this small); noise on the hidden states it reads stands for its own later mistakes.

Text and chat format are those of `train.py`; only answer tokens count in the loss.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.eagle_network import EagleConfig, EagleNetwork
from training.corpus import EXTRACTION, examples, story
from training.evaluate import answer, encode
from training.replacing import replacing
from training.tokenizer import load_tokenizer
from training.train import IGNORED, Batch, Encoder, batches, load_model, rate, sequences

LAYERS = {"eagle": 2, "eagle3": 1}
FEATURE_LAYERS = (1, 2, 4)
"""Of the embedded target. Layer 1 still shows which token stands where, and which before it: what
copying needs. Layer 4 is what the target is about to say."""

STEPS = {"eagle": 1, "eagle3": 3}
NOISE = {"eagle": 0.1, "eagle3": 0.0}
STATED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "hidden_act", "max_position_embeddings"),
    *("rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id"),
)
"""What a head's `config.json` takes over from its shape."""

DRAFTS = 3  # tokens of a draft that are measured


# --- the head over whole sequences


class Unrolled:
    """Causal attention of a head that is fed its own outputs, for all starting points at once.

    At step j, query t stands at position t + j. It sees the keys of step 0 at positions up to t,
    and of every later step the one key of its own chain.
    """

    def __init__(self) -> None:
        self.seen: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layer = module.layer_idx
        assert isinstance(layer, int)
        steps = self.seen.setdefault(layer, [])
        steps.append((key, value))
        rows, heads, length, width = query.shape
        query = query.view(rows, key.shape[1], -1, length, width) * width**-0.5
        (first_key, first_value), *later = [
            (k[:, :, None, :length], v[:, :, None, :length]) for k, v in steps
        ]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = [(query @ first_key.transpose(-1, -2)).masked_fill(future, -torch.inf)]
        scores += [(query * k).sum(-1, keepdim=True) for k, _ in later]
        weights = torch.cat(scores, dim=-1).softmax(-1)
        out = weights[..., :length] @ first_value
        for step, (_, v) in enumerate(later):
            out = out + weights[..., length + step, None] * v
        return out.view(rows, heads, length, width).transpose(1, 2)


def unroll(
    network: EagleNetwork, embedding: Tensor, ids: Tensor, features: Tensor, steps: int
) -> Iterator[Tensor]:
    """Hidden states of each step: of step j, `[row, start, H]` for starts 0 … T - 2 - j.

    `ids[row, T]`, `features[row, T, F]`. The state of step j at start t predicts token t + 2 + j;
    the tokens between are those of `ids`, as if every draft before had been right.
    """
    hidden, attend = network.fuse(features), Unrolled()
    for step in range(min(steps, ids.shape[1] - 1)):
        starts = ids.shape[1] - 1 - step
        following = functional.embedding(ids[:, 1 + step :], embedding)
        positions = (torch.arange(starts) + step)[None]
        angles = network.angles(hidden, positions)
        hidden = network(following, hidden[:, :starts], angles, attend)
        yield hidden


# --- the target


@contextmanager
def streams(model: LlamaForCausalLM, layers: tuple[int, ...] | None) -> Iterator[list[Tensor]]:
    """Collects, during a pass, what enters these layers; the last number is the final norm."""
    taken: dict[int, Tensor] = {}
    found: list[Tensor] = []
    parts = [*model.model.layers, model.model.norm]

    def hook(index: int) -> torch.utils.hooks.RemovableHandle:
        def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            taken[index] = args[0]

        part: nn.Module = parts[index]
        return part.register_forward_pre_hook(keep)

    handles = [hook(index) for index in layers or ()]
    try:
        yield found
        found.extend(taken[index] for index in layers or ())
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def read(
    model: LlamaForCausalLM, ids: Tensor, layers: tuple[int, ...] | None
) -> tuple[Tensor, Tensor]:
    """What a head gets to see `[row, T, F]`, and the last hidden states `[row, T, H]`."""
    with streams(model, layers) as found:
        last: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return (torch.cat(found, dim=-1) if found else last), last


def embedding_of(target: LlamaForCausalLM) -> Tensor:
    embedding: Tensor = target.model.embed_tokens.weight
    return embedding


# --- a new head


def new_head(target: LlamaForCausalLM, draft_ids: Tensor | None) -> EagleNetwork:
    """As wide as the target, started from its layers: EAGLE-3 if there is a draft vocabulary."""
    style = "eagle" if draft_ids is None else "eagle3"
    shape = target.config.to_dict()
    shape["num_hidden_layers"] = LAYERS[style]
    size = int(target.config.hidden_size)
    if draft_ids is None:
        network = EagleNetwork(EagleConfig("eagle", LlamaConfig(**shape), size))
        start_eagle(network, target)
        return network
    shape["num_attention_heads"] *= 2  # the target's number copies, as many bring the token in
    shape["num_key_value_heads"] *= 2
    width = size * len(FEATURE_LAYERS)
    network = EagleNetwork(
        EagleConfig("eagle3", LlamaConfig(**shape), width, FEATURE_LAYERS, len(draft_ids))
    )
    start_eagle3(network, target)
    with torch.no_grad():
        network.norm.weight.copy_(target.model.norm.weight)
        network.lm_head.weight.copy_(target.lm_head.weight[draft_ids])
    return network


@torch.no_grad()
def start_eagle(network: EagleNetwork, target: LlamaForCausalLM) -> None:
    """The first layers of the target, on the next token's embedding alone.

    The first layer of an EAGLE head has no norm, and what comes out must be as large as the
    target's normed states: the norm's scale goes into the weights around it.
    """
    size = network.config.hidden_size
    embedding = embedding_of(target)
    grow = float(target.model.norm.weight.abs().mean()) / float(embedding.pow(2).mean().sqrt())
    network.fc.weight.normal_(std=0.02)
    network.fc.weight[:, :size] += grow * torch.eye(size)
    source: Any
    layer: Any
    for index, (layer, source) in enumerate(zip(network.layers, target.model.layers, strict=False)):
        layer.load_state_dict(source.state_dict(), strict=False)
        layer.self_attn.o_proj.weight.mul_(grow)
        layer.mlp.down_proj.weight.mul_(grow)
        if index == 0:
            typical = grow * embedding.pow(2).mean().sqrt()
            for project in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                project.weight.mul_(source.input_layernorm.weight / typical)


@torch.no_grad()
def start_eagle3(network: EagleNetwork, target: LlamaForCausalLM) -> None:
    """Copying circuits (see `wire_induction`), told in what this layer sees.

    At position s stand the embedding of token s + 1 and a stream that shows tokens s and s - 1.
    Having read token t + 1, one head goes where the stream shows that same token, another where it
    shows the token before next to token t, and both bring along the embedding that stands there.
    Two more look at their own position, which is how the next token gets in. Each of the four has
    a key-value head; the query heads that share it start at random.
    """
    size, width = network.config.hidden_size, network.config.head_dim
    layer: Any = network.layers[0]
    source: Any = target.model.layers[FEATURE_LAYERS[0]]
    token = source.self_attn.q_proj.weight[:width]  # what the first copying head looks for
    before = source.self_attn.k_proj.weight[:width]  # and where it finds it
    brought, written = source.self_attn.v_proj.weight[:width], source.self_attn.o_proj.weight
    q, k, v, o = (getattr(layer.self_attn, f"{name}_proj").weight for name in "qkvo")
    network.fc.weight.normal_(std=0.01)
    network.fc.weight[:, :size] += torch.eye(size)
    for norm in (layer.input_layernorm, layer.hidden_norm):
        norm.weight.copy_(source.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(source.post_attention_layernorm.weight)
    layer.mlp.load_state_dict(source.mlp.state_dict())
    for weight in (q, k, v, o):
        weight.normal_(std=0.02)
    # A direction all tokens share, for heads that attend by position alone.
    shared = functional.normalize(embedding_of(target), dim=-1).mean(0)
    shared = shared / (shared.norm() * size**0.5)
    fast = width // 8  # dimensions that rotate enough to tell neighbours apart
    apart = len(q) // len(k) * width  # from the first query head of a group to that of the next
    first, second, *others = (
        (slice(group * apart, group * apart + width), slice(group * width, (group + 1) * width))
        for group in range(len(k) // width)
    )
    for query, key in others:
        q[query.start : query.start + fast, :size] += 12 * shared
        k[key.start : key.start + fast, :size] += 12 * shared
    q[first[0], :size], k[first[1], size:] = token, token
    q[second[0], size:], k[second[1], size:] = token, before
    for query, key in (first, second):
        v[key, :size], o[:, query] = brought, written[:, :width]


def draft_vocabulary(encoder: Encoder, seed: int, count: int, texts: int = 20_000) -> Tensor:
    """The ids of the `count` commonest answer tokens, ascending."""
    seen: Counter[int] = Counter([encoder.special("<|eos|>")])
    for example in islice(examples(seed), texts):
        seen.update(encoder.ids(example.answer))
    seen[encoder.special("<|eos|>")] += texts
    return torch.tensor(sorted(token for token, _ in seen.most_common(count)))


# --- the loss


@dataclass(frozen=True)
class Recipe:
    """What the loss is made of."""

    style: str
    steps: int
    noise: float
    cross_entropy: float  # its weight beside the distance, for "eagle"
    decay: float = 0.8  # of the weight from step to step


def loss_of(
    network: EagleNetwork,
    target: LlamaForCausalLM,
    batch: Batch,
    draft_ids: Tensor | None,
    recipe: Recipe,
) -> Tensor:
    features, last = read(target, batch.ids, network.config.feature_layers)
    if recipe.noise:
        features = features + recipe.noise * (2 * torch.rand_like(features) - 1)
    total = torch.zeros(())
    states = unroll(network, embedding_of(target), batch.ids, features, recipe.steps)
    for step, hidden in enumerate(states):
        counted = batch.labels[:, 1 + step :] != IGNORED
        wanted = last[:, 1 + step :][counted]
        mine = hidden[counted]
        with torch.no_grad():
            logits = target.lm_head(wanted)
            if draft_ids is not None:
                logits = logits[:, draft_ids]
            probs = logits.softmax(-1)
        if recipe.style == "eagle3":
            loss = functional.cross_entropy(network.read_out(mine), probs)
        else:
            loss = functional.smooth_l1_loss(mine, wanted)
            loss = loss + recipe.cross_entropy * functional.cross_entropy(
                functional.linear(mine, target.lm_head.weight), probs
            )
        total = total + recipe.decay**step * loss
    return total


# --- measuring


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


@torch.no_grad()
def measure(
    network: EagleNetwork,
    target: LlamaForCausalLM,
    draft_ids: Tensor | None,
    texts: list[Continued],
) -> dict[str, Conditional]:
    """Acceptance by kind of prompt and by form, and of all."""
    found = {name: Conditional() for name in ("extraction", "story", "completion", "chat", "all")}
    for text in texts:
        ids = torch.cat((text.prompt, text.answer))[None]
        features, _ = read(target, ids, network.config.feature_layers)
        # The first draft is of the second answer token: the first is what the target just said.
        begin, starts = len(text.prompt) - 1, len(text.answer) - 1
        agrees = torch.zeros(starts, DRAFTS, dtype=torch.bool)
        states = unroll(network, embedding_of(target), ids, features, DRAFTS)
        for draft, hidden in enumerate(states):
            if network.config.style == "eagle3":
                drafted = network.read_out(hidden).argmax(-1)
                drafted = drafted if draft_ids is None else draft_ids[drafted]
            else:
                drafted = functional.linear(hidden, target.lm_head.weight).argmax(-1)
            said = ids[0, begin + 2 + draft :]
            agrees[: len(said), draft] = drafted[0, begin : begin + len(said)] == said
        result = Conditional()
        result.replay(agrees)
        for name in (text.kind, text.form, "all"):
            found[name] += result
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


# --- files


def export(network: EagleNetwork, draft_ids: Tensor | None, out: Path) -> None:
    """Write the published layout in half precision; readers see the old folder or the new."""
    config, llama = network.config, network.config.llama
    rope: Any = llama.rope_parameters
    stated: dict[str, object] = {
        "architectures": ["LlamaForCausalLM" + ("Eagle3" if config.style == "eagle3" else "Eagle")],
        "model_type": "llama",
        "torch_dtype": "float16",
        **{name: getattr(llama, name) for name in STATED},
        "rope_theta": rope["rope_theta"],
        "tie_word_embeddings": False,
    }
    weights = {name: tensor.half() for name, tensor in network.state_dict().items()}
    if config.style == "eagle3":
        assert draft_ids is not None
        assert config.feature_layers is not None
        weights = {name.replace("layers.0.", "midlayer."): each for name, each in weights.items()}
        weights["d2t"] = draft_ids - torch.arange(len(draft_ids))
        weights["t2d"] = torch.zeros(llama.vocab_size, dtype=torch.bool).index_fill_(
            0, draft_ids, True
        )
        stated["draft_vocab_size"] = len(draft_ids)
        stated["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
            "use_aux_hidden_state": True,
        }
    with replacing(out) as fresh:
        (fresh / "config.json").write_text(json.dumps(stated, indent=2) + "\n")
        save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(args.target)
    encoder = Encoder(tokenizer)
    target = load_model(args.target)
    target.requires_grad_(False)
    draft_ids = None
    if args.style == "eagle3":
        draft_ids = draft_vocabulary(encoder, args.seed, args.draft_vocab)
    network = new_head(target, draft_ids)
    recipe = Recipe(
        args.style,
        STEPS[args.style] if args.steps is None else args.steps,
        NOISE[args.style] if args.noise is None else args.noise,
        args.cross_entropy,
    )
    texts = continued(target, tokenizer, args.probe, args.probe // 4, seed=2026)
    decayed = [p for p in network.parameters() if p.ndim > 1]
    plain = [p for p in network.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
        fused=True,
    )
    rng = random.Random(args.seed)
    stream = batches(
        sequences(encoder, examples(args.seed + 3), rng, args.long), rng, args.batch, 1024
    )
    seen, step, losses = 0, 0, [0.0]
    began = reported = time.monotonic()
    print(f"parameters {sum(p.numel() for p in network.parameters()):,}", flush=True)
    while seen < args.tokens:
        batch = next(stream)
        for group in optimizer.param_groups:
            group["lr"] = rate(seen / args.tokens, seen / args.warm_up, args.lr)
        loss = loss_of(network, target, batch, draft_ids, recipe)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seen, step = seen + batch.ids.numel(), step + 1
        now = time.monotonic()
        if now - reported > args.report_s or seen >= args.tokens:
            rates = measure(network, target, draft_ids, texts)["all"].rates()
            print(
                f"step {step} tokens {seen:,} seconds {now - began:.0f} "
                f"loss {sum(losses[-50:]) / len(losses[-50:]):.4f} "
                f"accepted {' '.join(f'{rate:.3f}' for rate in rates)}",
                flush=True,
            )
            export(network, draft_ids, args.out)
            reported = time.monotonic()


def evaluate(args: argparse.Namespace) -> None:
    """Print the table of a written head, on seeds that training did not report."""
    torch.set_num_threads(1)
    tokenizer, target = load_tokenizer(args.target), load_model(args.target)
    head = EagleHead.load(args.out, CausalLM.load(args.target, invariant=False))
    texts = continued(target, tokenizer, args.prompts, args.stories, args.eval_seed)
    print(table(measure(head.network, target, head.draft_ids, texts)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train an EAGLE head for a target; with --evaluate, only measure one.",
        epilog="example: python -m training.eagle --style eagle3 --out models/embedded/eagle3",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--style", choices=tuple(STEPS), default="eagle3")
    parser.add_argument("--target", type=Path, default=Path("models/embedded/target"))
    parser.add_argument("--out", type=Path, required=True, help="head folder to write or measure")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens to train on")
    parser.add_argument("--batch", type=int, default=1024, help="tokens per optimizer step")
    parser.add_argument("--long", type=float, default=0.05, help="share of chats of many turns")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=20_000, help="tokens until the peak rate")
    parser.add_argument("--steps", type=int, help="steps unrolled; by default 3, or 1 for eagle")
    parser.add_argument("--noise", type=float, help="uniform; by default 0, or 0.1 for eagle")
    parser.add_argument("--cross-entropy", type=float, default=1.0, help="its weight, for eagle")
    parser.add_argument("--draft-vocab", type=int, default=704, help="its size, for eagle3")
    parser.add_argument("--probe", type=int, default=24, help="held-out prompts per report")
    parser.add_argument("--report-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--evaluate", action="store_true", help="train nothing; print a table")
    parser.add_argument("--prompts", type=int, default=200, help="extractions to evaluate on")
    parser.add_argument("--stories", type=int, default=50, help="stories to evaluate on")
    parser.add_argument("--eval-seed", type=int, default=4052)
    args = parser.parse_args()
    (evaluate if args.evaluate else train)(args)


if __name__ == "__main__":
    main()
