"""Medusa heads: each guesses one token further ahead, all from one hidden state of the target.

Head i reads the state from which the target says token t + 1, and guesses token t + 2 + i (Cai et
al. 2024, arXiv:2401.10774). So the heads need no cache and do not wait for each other.

Published files: `i.j.linear.weight` and `.bias` of block j of head i, which adds SiLU(W x + b) to
what it reads, then `i.n.weight` of an output layer of the head's own, without bias. Heads without
one share the target's. Names may begin with `medusa_head.`, and `config.json` says
`medusa_num_heads` and `medusa_num_layers`.

Shapes: S states, H width of the target, V its vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .causal_lm import CausalLM
from .errors import ModelError
from .head_files import HeadFiles, read_files, require_names, require_numbers
from .heads import fitted, output_head
from .source import EMBEDDED_MEDUSA

_PREFIX = "medusa_head."


class MedusaBlock(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """`[S, H]` of `x[S, H]`."""
        mixed: Tensor = x + self.act(self.linear(x))
        return mixed


class MedusaNetwork(nn.ModuleList):
    """The heads; parameters are named as in published files.

    `own_output`: each has an output layer of its own, else that of the target is `shared`.
    """

    def __init__(
        self, heads: int, layers: int, size: int, vocab_size: int, *, own_output: bool = True
    ) -> None:
        def head() -> nn.Sequential:
            blocks: list[nn.Module] = [MedusaBlock(size) for _ in range(layers)]
            own = [nn.Linear(size, vocab_size, bias=False)] if own_output else []
            return nn.Sequential(*blocks, *own)

        super().__init__([head() for _ in range(heads)])

    def guesses(self, states: Tensor, count: int, shared: nn.Module | None = None) -> list[Tensor]:
        """Logits `[S, V]` of the first `count` heads, of `states[S, H]`."""
        found = [head(states) for head in list(self)[:count]]
        return found if shared is None else [shared(each) for each in found]


class MedusaHeads:
    """Medusa heads that stand on a target: on its device, in its precision and arithmetic.

    `network` is taken over. Raises `ModelError` if it cannot be put there.
    """

    def __init__(self, network: MedusaNetwork, target: CausalLM, *, own_output: bool) -> None:
        self.name = f"Medusa heads of {target.name}"
        self.network = fitted(network, target)
        self._shared: nn.Module | None = None
        if not own_output:
            self._shared = fitted(output_head(target), target)

    @classmethod
    def load(cls, name_or_path: str | Path, target: CausalLM, *, least: int = 1) -> MedusaHeads:
        """Load `"embedded-medusa"`, a directory or a hub name, for a target.

        `least`: how many heads are needed. Local files first; safetensors only. Raises `ModelError`
        if the heads do not fit the target or are fewer, naming the key.
        """
        files = read_files(name_or_path, EMBEDDED_MEDUSA, "Medusa heads")
        network, own_output = _built(files, target, least)
        return cls(network, target, own_output=own_output)

    def __len__(self) -> int:
        return len(self.network)

    @torch.no_grad()
    def guesses(self, states: Tensor, count: int) -> list[Tensor]:
        """Logits `[S, V]` for each of the `count` tokens after the next, of `states[S, H]`."""
        return self.network.guesses(states, count, self._shared)


def _built(files: HeadFiles, target: CausalLM, least: int) -> tuple[MedusaNetwork, bool]:
    """The network with its weights, and whether heads have output layers of their own."""
    name = files.name
    heads, layers = (
        _number(name, files.config, key, usual)
        for key, usual in (("medusa_num_heads", None), ("medusa_num_layers", 1))
    )
    if heads < least:
        raise ModelError(
            f"{name}: it has {heads} heads; {least} drafts one behind the other take as many: "
            "lower `tokens`, or the depth of `tree`"
        )
    weights = {key.removeprefix(_PREFIX): weight for key, weight in files.weights.items()}
    own_output = any(key.endswith(f".{layers}.weight") for key in weights)
    with torch.device("meta"):
        network = MedusaNetwork(
            heads, layers, target.hidden_size, target.vocab_size, own_output=own_output
        )
    expected = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    require_names(name, f"Medusa heads ({heads} of {layers} layers)", weights, expected)
    for key, shape in expected.items():
        if tuple(weights[key].shape) != shape:
            raise ModelError(
                f"{name}: {key} is {tuple(weights[key].shape)}; {target.name} (hidden size "
                f"{target.hidden_size}, vocabulary {target.vocab_size}) asks for {shape}"
            )
    require_numbers(name, weights)
    network.load_state_dict(weights, assign=True)
    return network, own_output


def _number(name: str, stated: Mapping[str, Any], key: str, usual: int | None) -> int:
    found = stated.get(key, usual)
    if type(found) is not int or found < 1:
        raise ModelError(f"{name}: config.json says {key} {found!r}; want a number from 1 on")
    return found
