"""A pass of a model in pieces: it depends on its sizes alone, but for attention in the middle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from ..graph.pieces import Between, Pieces
from .attention import AttentionBatch

Found = tuple[Tensor, Tensor]


def rounded_logits(count: int) -> int:
    """The size to which so many lines of logits are rounded up: a power of four. Raises nothing."""
    return 4 ** ((count - 1).bit_length() + 1 >> 1) if count else 0


def in_pieces(
    pieces: Pieces,
    key: Hashable,
    given: Mapping[str, tuple[Tensor, int]],
    batch: AttentionBatch,
    work: Callable[[Mapping[str, Tensor], AttentionBatch], Found],
) -> Found | None:
    """The two tensors that `work` finds, for the caller to keep; None where it was not done.

    `given[n, ...]` are tensors by name, each with the size to which it is rounded up, and `work`
    gets them so, with a batch whose attention is not recorded. `key`: all else that it goes by.
    Raises nothing of its own.
    """

    def run(tensors: Sequence[Tensor], between: Between) -> Found:
        done = tuple(batch.calls)
        batch.begin()
        again = replace(batch, between=between)
        try:
            return work(dict(zip(given, tensors, strict=True)), again)
        except Exception:
            batch.calls[:] = done  # it cannot be recorded; what it came to as usual counts
            raise

    found = pieces.run((key, *given), list(given.values()), batch, run)
    return None if found is None else (found[0].clone(), found[1].clone())
