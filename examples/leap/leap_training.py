"""Fit the heads of `leap` to a model, on texts that it writes itself, by least squares.

    python -m leap_training heads.safetensors --heads 4

The model is read through transformers; half a minute for the model that Stepweave ships.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from stepweave import LLM, SamplingParams
from stepweave.nodes import CausalLM

BEGINNINGS = ("Write a short story about a fox.", "Once upon a time", "The rain in the old city")


def texts(model: str, count: int, length: int) -> Iterator[list[int]]:
    """Tokens of `count` texts that the model draws at random, by seeds 0, 1 …"""
    with LLM(model) as llm:
        for seed in range(0, count, len(BEGINNINGS)):
            asked = SamplingParams(max_tokens=length, temperature=0.7, seed=seed, ignore_eos=True)
            for output in llm.generate(list(BEGINNINGS), asked):
                yield list(output.token_ids)


def hidden_states(model: str, written: Sequence[list[int]]) -> list[Tensor]:
    """`[L, H]` of each text, as its last layer and norm leave them."""
    hf = CausalLM.load(model, invariant=False).hf
    hf.set_attn_implementation("eager")
    with torch.no_grad():
        return [
            hf(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0].double()
            for tokens in written
        ]


def fit(states: Sequence[Tensor], distance: int, ridge: float) -> tuple[Tensor, Tensor]:
    """Weight `[H, H]` and bias `[H]` that best turn a state into that `distance` tokens later."""
    before = torch.cat([each[:-distance] for each in states])
    after = torch.cat([each[distance:] for each in states])
    inputs = torch.cat([before, torch.ones_like(before[:, :1])], dim=1)
    gram = inputs.T @ inputs
    penalty = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    solved = torch.linalg.solve(gram + penalty, inputs.T @ after).float()  # [H + 1, H]
    return solved[:-1].T.contiguous(), solved[-1].contiguous()


def train(
    path: str | Path,
    model: str = "embedded",
    heads: int = 4,
    count: int = 30,
    length: int = 160,
    ridge: float = 1e-4,
) -> None:
    """Write so many heads for the model to a safetensors file."""
    states = hidden_states(model, list(texts(model, count, length)))
    found: dict[str, Tensor] = {}
    for place in range(1, heads + 1):
        weight, bias = fit(states, place, ridge)
        found |= {f"heads.{place}.weight": weight, f"heads.{place}.bias": bias}
    save_file(found, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fit the heads of leap to a model.")
    parser.add_argument("path")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--heads", type=int, default=4)
    asked = parser.parse_args()
    train(asked.path, asked.model, asked.heads)
