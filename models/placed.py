"""Rows that an encoder has made, in the place of tokens in a pass of the decoder.

The first part of a row takes the place of a token's embedding. What is left of it, in models that
have that, is added behind the first layers, a part behind each (DeepStack, Meng et al. 2024,
arXiv:2406.04334). Rows are named by index, so nothing asks the device how many there are, and a
chunk of a prompt may begin or end between the rows of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_HOOKS = "_stepweave_placing"


@dataclass(frozen=True, eq=False)
class Placed:
    """`rows[E, H · (1 + D)]` for the tokens at `tokens[E]` of a pass, each once."""

    tokens: Tensor
    rows: Tensor


class Placing:
    """Puts rows in their places, of hidden states of width H; `layers` are the D first ones."""

    def __init__(self, base: nn.Module, layers: Sequence[nn.Module], width: int) -> None:
        undo(base)
        self._width = width
        self._added: tuple[Tensor, ...] = ()
        self._tokens: Tensor | None = None
        base.__dict__[_HOOKS] = [
            layer.register_forward_hook(partial(self._leaving, number))
            for number, layer in enumerate(layers)
        ]

    def begin(self, embeddings: Tensor, placed: Placed) -> Tensor:
        """A pass over `embeddings[1, T, H]` begins; with the rows in place, `[1, T, H]`."""
        first, *others = torch.split(placed.rows, self._width, dim=1)
        self._added, self._tokens = tuple(others), placed.tokens
        return embeddings.index_copy(1, placed.tokens, first[None].to(embeddings.dtype))

    def end(self) -> None:
        """The pass is over."""
        self._added, self._tokens = (), None

    def _leaving(self, number: int, module: nn.Module, args: Any, output: Any) -> Any:
        if self._tokens is None:
            return None
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = hidden.index_add(1, self._tokens, self._added[number][None].to(hidden.dtype))
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def undo(base: nn.Module) -> None:
    """Take the hooks away again."""
    for handle in base.__dict__.pop(_HOOKS, ()):
        handle.remove()
