"""leap: a drafter with weights of its own, small heads on the target's last hidden state.

The hidden state from which the target reads token t + 1 also says something of the tokens after it
(Cai et al. 2024, arXiv:2401.10774). Head i is a linear layer that turns this state into a guess of
the state i places later; the target's own output layer reads a token from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from stepweave.nodes import (
    HIDDEN,
    INPUTS,
    SAMPLED,
    TARGET,
    Drafter,
    DrafterOptions,
    Resource,
    given,
    read,
    settings,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stepweave.nodes import CausalLM, Inputs, Proposal, Sampled


class LeapOptions(DrafterOptions):
    """What a pipeline file may say of the drafter."""

    weights: str = Field(description="The heads: a safetensors file, see `leap_training.py`.")


def load(
    chosen: LeapOptions = settings(LeapOptions), target: CausalLM = given(TARGET)
) -> nn.ModuleList:
    """The heads, each from `[N, H]` to logits `[N, V]`. Raises `ValueError` for a wrong file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import nn

    from stepweave.nodes import fitted, output_head

    if not Path(chosen.weights).is_file():
        raise ValueError(f"weights: there is no file {chosen.weights!r}")
    try:
        found = load_file(chosen.weights)
    except SafetensorError as error:
        raise ValueError(f"weights: {chosen.weights} is no safetensors file: {error}") from error
    width, file = target.hidden_size, chosen.weights
    heads = nn.ModuleList()
    for place in range(1, chosen.tokens + 1):
        guess = nn.Linear(width, width)
        for part, parameter in guess.named_parameters():
            name, shape = f"heads.{place}.{part}", tuple(parameter.shape)
            if name not in found:
                raise ValueError(
                    f"weights: {file} has no {name}; `tokens: {chosen.tokens}` takes as many heads"
                )
            if tuple(found[name].shape) != shape:
                raise ValueError(
                    f"weights: {name} of {file} has shape {tuple(found[name].shape)}, but "
                    f"{shape} fits the target, whose hidden states have {width} numbers"
                )
            parameter.data = found[name]
        heads.append(nn.Sequential(guess, output_head(target)))
    return fitted(heads, target)


HEADS: Resource[nn.ModuleList] = Resource("leap_heads", load)
"""A head for each draft of a row."""


def propose(
    inputs: Inputs | None = read(INPUTS),
    sampled: Sampled | None = read(SAMPLED),
    hidden: Tensor | None = read(HIDDEN),
    heads: nn.ModuleList = given(HEADS),
) -> Proposal | None:
    """A draft from each head, for the places after the token that was just sampled."""
    import torch

    from stepweave.nodes import Proposal

    sample = None if inputs is None else inputs.sample
    if sample is None or sampled is None or hidden is None or sample.draft_width == 0:
        return None
    newest = sampled.counts[:, None] - 1  # the position whose logits gave the newest token
    states = hidden[sample.logit_index.gather(1, newest)[:, 0]]  # [S, H]
    wanted = list(heads)[: sample.draft_width]
    tokens = torch.stack([head(states).argmax(dim=-1) for head in wanted], dim=1)
    return Proposal(tokens, valid=torch.full_like(sampled.counts, len(wanted)))


DRAFTER = Drafter(
    "leap",
    "propose k tokens per row with k heads on the target's last hidden state",
    propose,
    options=LeapOptions,
)
