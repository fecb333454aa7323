"""Train Medusa heads for a target, and measure what they draft.

Head i reads the target's last hidden state of token t and predicts token t + 2 + i (Cai et al.
2024, arXiv:2401.10774). The loss is the cross-entropy with the target's own distribution there, a
head weighing 0.8 of the one before. The target is not changed.

Text and chat format are those of `train.py`; only answer tokens count in the loss.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from stepweave.models.causal_lm import CausalLM
from stepweave.models.medusa import MedusaHeads, MedusaNetwork
from training.fitting import Fitted, evaluate, fit, load, parser_for
from training.measuring import Drafted
from training.replacing import replacing
from training.train import IGNORED, Batch
from training.unrolling import read

DECAY = 0.8
"""Of the weight of a head's loss, from head to head."""


def new_heads(target: LlamaForCausalLM, heads: int, layers: int) -> MedusaNetwork:
    """Blocks that begin by changing nothing, and the target's own output layer for each."""
    size, vocab = target.lm_head.weight.shape[1], target.lm_head.weight.shape[0]
    network = MedusaNetwork(heads, layers, size, vocab)
    with torch.no_grad():
        for head in network:
            assert isinstance(head, torch.nn.Sequential)
            *blocks, output = head
            for block in blocks:
                for parameter in block.parameters():
                    parameter.normal_(std=0.01)
            output.load_state_dict({"weight": target.lm_head.weight})
    return network


def loss_of(network: MedusaNetwork, target: LlamaForCausalLM, batch: Batch) -> Tensor:
    _, last = read(target, batch.ids, None)
    total = torch.zeros(())
    with torch.no_grad():
        probs = target.lm_head(last).softmax(-1)
    for head, logits in enumerate(_of_all(network, last)):
        counted = batch.labels[:, 1 + head :] != IGNORED
        wanted = probs[:, 1 + head :][counted]
        mine = logits[:, : logits.shape[1] - 1 - head][counted]
        total = total + DECAY**head * functional.cross_entropy(mine, wanted)
    return total


def _of_all(network: MedusaNetwork, last: Tensor) -> list[Tensor]:
    """Logits `[row, T, V]` of each head, of the target's `last[row, T, H]` hidden states."""
    rows = last.shape[:2]
    return [each.view(*rows, -1) for each in network.guesses(last.flatten(0, 1), len(network))]


def drafting(network: MedusaNetwork, target: LlamaForCausalLM) -> Drafted:
    """What the heads draft, to be measured."""

    def drafted(ids: Tensor) -> Iterator[Tensor]:
        _, last = read(target, ids, None)
        yield from (each.argmax(-1) for each in _of_all(network, last))

    return drafted


def export(network: MedusaNetwork, layers: int, out: Path) -> None:
    """Write the published layout in half precision; readers see the old folder or the new."""
    stated = {"medusa_num_heads": len(network), "medusa_num_layers": layers}
    weights = {name: each.half() for name, each in network.state_dict().items()}
    with replacing(out) as fresh:
        (fresh / "config.json").write_text(json.dumps(stated, indent=2) + "\n")
        save_file(weights, fresh / "medusa_lm_head.safetensors", metadata={"format": "pt"})


def train(args: argparse.Namespace) -> None:
    target, tokenizer = load(args)
    network = new_heads(target, args.heads, args.layers)

    def loss(batch: Batch) -> Tensor:
        return loss_of(network, target, batch)

    drafted = drafting(network, target)
    fitted = Fitted(network, loss, drafted, lambda: export(network, args.layers, args.out))
    fit(args, target, tokenizer, fitted)


def written(args: argparse.Namespace) -> Callable[[LlamaForCausalLM], Drafted]:
    """What the heads that were written draft."""

    def drafted_by(target: LlamaForCausalLM) -> Drafted:
        heads = MedusaHeads.load(
            args.out, CausalLM.load(args.target, dtype="float32", invariant=False)
        )
        return drafting(heads.network, target)

    return drafted_by


def main() -> None:
    parser = parser_for("Medusa heads", "python -m training.medusa --out models/embedded/medusa")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=1, help="blocks of each head")
    args = parser.parse_args()
    if args.evaluate:
        evaluate(args, written(args))
    else:
        train(args)


if __name__ == "__main__":
    main()
