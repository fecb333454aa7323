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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.eagle_network import EagleConfig, EagleNetwork
from stepweave.models.mtp_network import MtpNetwork
from training.corpus import examples
from training.fitting import Fitted, evaluate, fit, load, parser_for
from training.measuring import DRAFTS, Drafted
from training.replacing import replacing
from training.train import IGNORED, Batch, Encoder
from training.unrolling import embedding_of, read, unroll

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


def drafting(
    network: EagleNetwork | MtpNetwork, target: LlamaForCausalLM, draft_ids: Tensor | None
) -> Drafted:
    """What a head drafts, to be measured."""

    def drafted(ids: Tensor) -> Iterator[Tensor]:
        features, _ = read(target, ids, network.config.feature_layers)
        for hidden in unroll(network, embedding_of(target), ids, features, DRAFTS):
            if network.config.shares_output:
                yield functional.linear(hidden, target.lm_head.weight).argmax(-1)
            else:
                tokens = network.read_out(hidden).argmax(-1)
                yield tokens if draft_ids is None else draft_ids[tokens]

    return drafted


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
    target, tokenizer = load(args)
    draft_ids = None
    if args.style == "eagle3":
        draft_ids = draft_vocabulary(Encoder(tokenizer), args.seed, args.draft_vocab)
    network = new_head(target, draft_ids)
    recipe = Recipe(
        args.style,
        STEPS[args.style] if args.steps is None else args.steps,
        NOISE[args.style] if args.noise is None else args.noise,
        args.cross_entropy,
    )

    def loss(batch: Batch) -> Tensor:
        return loss_of(network, target, batch, draft_ids, recipe)

    drafted = drafting(network, target, draft_ids)
    fitted = Fitted(network, loss, drafted, lambda: export(network, draft_ids, args.out))
    fit(args, target, tokenizer, fitted)


def written(args: argparse.Namespace) -> Callable[[LlamaForCausalLM], Drafted]:
    """What the head that was written drafts."""

    def drafted_by(target: LlamaForCausalLM) -> Drafted:
        head = EagleHead.load(
            args.out, CausalLM.load(args.target, dtype="float32", invariant=False)
        )
        return drafting(head.network, target, head.draft_ids)

    return drafted_by


def main() -> None:
    example = "python -m training.eagle --style eagle3 --out models/embedded/eagle3"
    parser = parser_for("an EAGLE head", example)
    parser.add_argument("--style", choices=tuple(STEPS), default="eagle3")
    parser.add_argument("--steps", type=int, help="steps unrolled; by default 3, or 1 for eagle")
    parser.add_argument("--noise", type=float, help="uniform; by default 0, or 0.1 for eagle")
    parser.add_argument("--cross-entropy", type=float, default=1.0, help="its weight, for eagle")
    parser.add_argument("--draft-vocab", type=int, default=704, help="its size, for eagle3")
    args = parser.parse_args()
    if args.evaluate:
        evaluate(args, written(args))
    else:
        train(args)


if __name__ == "__main__":
    main()
