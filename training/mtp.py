"""Train a module that predicts further tokens (MTP) for a target, and measure what it drafts.

The module at position t reads the target's last hidden state of token t and the embedding of token
t + 1, and predicts token t + 2 (DeepSeek-V3, arXiv:2412.19437). Since the one module drafts all
tokens of a step, it is unrolled while training, fed its own output; the loss is the cross-entropy
with the target's own distribution, a step weighing 0.8 of the one before.

Text and chat format are those of `train.py`; only answer tokens count in the loss.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from stepweave.models.causal_lm import CausalLM
from stepweave.models.mtp_checkpoint import mtp_networks
from stepweave.models.mtp_network import MtpNetwork
from training.eagle import STATED, drafting
from training.fitting import Fitted, evaluate, fit, load, parser_for
from training.measuring import Drafted
from training.replacing import replacing
from training.train import IGNORED, Batch
from training.unrolling import embedding_of, read, unroll

DECAY = 0.8
"""Of the weight of a step's loss, from step to step."""

COPYING = 1
"""The target's layer that copies (see `wire_induction`): the module's layer begins as it is."""


def new_module(target: LlamaForCausalLM) -> MtpNetwork:
    """Started from the target: its last norm, its copying layer, on the next token's embedding."""
    network = MtpNetwork(target)
    size = int(target.config.hidden_size)
    source: Any = target.model.layers[COPYING]
    with torch.no_grad():
        network.norm.load_state_dict(target.model.norm.state_dict())
        network.layers[0].load_state_dict(source.state_dict())
        scale = float(embedding_of(target).pow(2).mean().sqrt())
        network.eh_proj.weight.normal_(std=0.02)
        network.eh_proj.weight[:, :size] += scale * torch.eye(size)
        network.eh_proj.weight[:, size:] += 0.5 * scale * torch.eye(size)
    return network


def loss_of(network: MtpNetwork, target: LlamaForCausalLM, batch: Batch, steps: int) -> Tensor:
    features, last = read(target, batch.ids, None)
    total = torch.zeros(())
    states = unroll(network, embedding_of(target), batch.ids, features, steps)
    for step, hidden in enumerate(states):
        counted = batch.labels[:, 1 + step :] != IGNORED
        with torch.no_grad():
            probs = target.lm_head(last[:, 1 + step :][counted]).softmax(-1)
        logits = functional.linear(hidden[counted], target.lm_head.weight)
        total = total + DECAY**step * functional.cross_entropy(logits, probs)
    return total


def export(network: MtpNetwork, target: LlamaForCausalLM, out: Path) -> None:
    """Write the layout of DeepSeek in half precision; readers see the old folder or the new."""
    config: Any = target.config
    layers = int(config.num_hidden_layers)
    stated: dict[str, object] = {
        "model_type": "llama",
        "torch_dtype": "float16",
        **{name: getattr(config, name) for name in STATED},
        "num_nextn_predict_layers": 1,
        "rope_theta": config.rope_parameters["rope_theta"],
    }
    weights = {
        f"model.layers.{layers}.{_published(name)}": each.half()
        for name, each in network.state_dict().items()
    }
    with replacing(out) as fresh:
        (fresh / "config.json").write_text(json.dumps(stated, indent=2) + "\n")
        save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})


def _published(name: str) -> str:
    if name == "norm.weight":
        return "shared_head.norm.weight"
    return name.removeprefix("layers.0.")


def train(args: argparse.Namespace) -> None:
    target, tokenizer = load(args)
    network = new_module(target)

    def loss(batch: Batch) -> Tensor:
        return loss_of(network, target, batch, args.steps)

    drafted = drafting(network, target, None)
    fitted = Fitted(network, loss, drafted, lambda: export(network, target, args.out))
    fit(args, target, tokenizer, fitted)


def written(args: argparse.Namespace) -> Callable[[LlamaForCausalLM], Drafted]:
    """What the module that was written drafts."""

    def drafted_by(target: LlamaForCausalLM) -> Drafted:
        (network,) = mtp_networks(args.out, CausalLM.load(args.target, invariant=False))
        return drafting(network.float(), target, None)

    return drafted_by


def main() -> None:
    parser = parser_for("an MTP module", "python -m training.mtp --out models/embedded/mtp")
    parser.add_argument("--steps", type=int, default=3, help="steps unrolled")
    args = parser.parse_args()
    if args.evaluate:
        evaluate(args, written(args))
    else:
        train(args)


if __name__ == "__main__":
    main()
