"""The log-probabilities that requests ask for, of logits at several positions of each row."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...sampling.draw import filtered_log_probs
from ...sampling.stand_ins import StandIns
from ...sampling.xtc import thresholds
from ..data import SampleRows


def likelihoods(
    rows: SampleRows,
    logits: Tensor,
    at: Callable[[], Tensor],
    *,
    normalized: bool,
    stand_ins: StandIns | None = None,
) -> Tensor:
    """The log-probabilities `[S, n, V]` that requests ask for, of `logits[S, n, V]` with
    `stand_ins` in the place of some.

    `at()`: the output positions `[S, n]` of what is chosen by them, asked for where they count.
    Raises nothing of its own.
    """
    count, n, vocab = logits.shape

    def each(setting: Tensor) -> Tensor:
        return setting if n == 1 else setting.repeat_interleave(n, output_size=count * n)

    xtc = None
    if rows.xtc is not None:
        xtc = thresholds(each(rows.seeds), at().reshape(-1), *map(each, rows.xtc.unbind()))
    return filtered_log_probs(
        logits.reshape(count * n, vocab),
        each(rows.temperature),
        each(rows.top_k),
        each(rows.top_p),
        min_p=each(rows.min_p),
        xtc=xtc,
        any_top_k=rows.any_top_k,
        any_top_p=rows.any_top_p,
        normalized=normalized,
        stand_ins=stand_ins,
    ).view(count, n, vocab)
