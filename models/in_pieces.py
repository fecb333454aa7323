"""A pass of a model in pieces: it depends on its sizes alone, but for attention in the middle.

Attention depends on whose tokens these are. On a CPU, where it is many operations, it is recorded
with all the rest once a layout of rows (`row_layout.py`) has come up often. Until then, for draft
trees, and on devices it is done anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..backends import backend_of
from ..graph.pieces import Between, Pieces
from .attention import AttentionBatch
from .row_layout import Laid, laid_out

Found = tuple[Tensor, Tensor]
"""Logits `[L, V]`, and hidden states `[T, F]`."""


def rounded_logits(count: int) -> int:
    """The size to which so many lines of logits are rounded up: a power of four. Raises nothing."""
    return 4 ** ((count - 1).bit_length() + 1 >> 1) if count else 0


@dataclass(frozen=True)
class PassInPieces:
    """What a pass goes by."""

    key: Hashable
    """All but sizes."""
    work: Callable[[Mapping[str, Tensor], Tensor | None, AttentionBatch], Found]
    """What is found of tensors by name, of the indices of tokens whose logits are asked for (None:
    all), and of a batch for attention."""
    least: Callable[[int], int]
    """With how many lines so many tokens are computed, at least."""

    def run(
        self,
        pieces: Pieces,
        given: Mapping[str, Tensor],
        logit_rows: Tensor | None,
        batch: AttentionBatch,
    ) -> Found | None:
        """What `work` finds, for the caller to keep; None where it was not done.

        `given[T, ...]` are tensors by name, a line for each token of the `batch`; `work` gets more
        lines, and more of `logit_rows[L]`. Raises nothing of its own.
        """
        tokens = len(batch.slots)
        if (size := pieces.size(tokens)) is None:
            return None
        if backend_of(batch.slots.device).on_host:
            laid = laid_out(batch, pieces.size)
            if laid is not None and (found := self._laid(pieces, given, logit_rows, laid)):
                return found
        sizes = {name: (each, self.least(size)) for name, each in given.items()}

        def work(tensors: Mapping[str, Tensor], rows: Tensor | None, between: Between) -> Found:
            return self.work(tensors, rows, replace(batch, between=between))

        found = _run(pieces, self.key, sizes, logit_rows, batch, work)
        if found is None:
            return None
        asked = tokens if logit_rows is None else len(logit_rows)
        return found[0][:asked].clone(), found[1][:tokens].clone()

    def _laid(
        self,
        pieces: Pieces,
        given: Mapping[str, Tensor],
        logit_rows: Tensor | None,
        laid: Laid,
    ) -> Found | None:
        """The same, attention included."""
        batch = laid.batch
        size = self.least(len(laid.order))
        sizes = {name: (each.index_select(0, laid.order), size) for name, each in given.items()}
        of_batch = zip(_OF_BATCH, (batch.block_tables, batch.positions, batch.slots), strict=True)
        rows = None if logit_rows is None else laid.places.index_select(0, logit_rows)

        def work(tensors: Mapping[str, Tensor], rows: Tensor | None, _: Between) -> Found:
            tables, positions, slots = (tensors[name] for name in _OF_BATCH)
            again = replace(batch, block_tables=tables, positions=positions, slots=slots)
            return self.work({name: tensors[name] for name in given}, rows, again)

        found = _run(
            pieces,
            (self.key, batch.query_lens, batch.blocks, batch.masked, batch.cache),
            sizes | {name: (each, len(each)) for name, each in of_batch},
            rows,
            batch,
            work,
            otherwise=True,
        )
        if found is None:
            return None
        logits, hidden = found[0], found[1].index_select(0, laid.places)
        if logit_rows is None:
            return logits.index_select(0, laid.places), hidden
        return logits[: len(logit_rows)].clone(), hidden


_OF_BATCH = ("batch.block_tables", "batch.positions", "batch.slots")
_LOGIT_ROWS = "logit_rows"


def _run(
    pieces: Pieces,
    key: Hashable,
    sizes: dict[str, tuple[Tensor, int]],
    logit_rows: Tensor | None,
    batch: AttentionBatch,
    work: Callable[[Mapping[str, Tensor], Tensor | None, Between], Found],
    *,
    otherwise: bool = False,
) -> Found | None:
    """What `work` finds, as it was recorded with tensors of such sizes; it is overwritten later."""
    if logit_rows is not None:
        sizes = {**sizes, _LOGIT_ROWS: (logit_rows, rounded_logits(len(logit_rows)))}

    def run(tensors: Sequence[Tensor], between: Between) -> Found:
        by_name = dict(zip(sizes, tensors, strict=True))
        rows = by_name.pop(_LOGIT_ROWS, None)
        return work(by_name, rows, between)

    return pieces.run((key, *sizes), list(sizes.values()), batch, run, otherwise=otherwise)
