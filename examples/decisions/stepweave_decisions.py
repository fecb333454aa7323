"""An acceptance rule and a scheduling policy of another package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from stepweave.policies import DecodesFirst, Policy, RowView
from stepweave.sampling import Verified, Windows


class NearBest(Policy):
    """Keep a draft that is nearly as likely as the best token. The output is not the model's."""

    exact: ClassVar[bool] = False  # tokens depend on the drafts
    compares: ClassVar[bool] = False  # what drafts were drawn from is not needed
    couples: ClassVar[bool] = False  # so drafters offer their most likely tokens

    share: float = Field(
        default=0.3, gt=0, le=1, description="Of the best token's probability, at least this."
    )

    def verify(self, windows: Windows) -> Verified:
        import torch

        from stepweave.sampling import prefix, then_drawn, usable

        target, drafts = windows.target, windows.drafts  # [R, k + 1, V] and [R, k]
        vocab, k = target.shape[-1], drafts.shape[1]
        chances = target[:, :k].softmax(dim=-1)
        best, token = chances.max(dim=-1)
        index = drafts.clamp(0, vocab - 1)[..., None]  # -1, for no draft, is never an index
        near = chances.gather(-1, index)[..., 0] >= self.share * best
        # Of a greedy row only the best token may be used: see `Windows`.
        keeps = torch.where(windows.greedy[:, None], drafts == token, near)
        return then_drawn(windows, prefix(usable(drafts, windows.valid, vocab) & keeps))


class ShortFirst(DecodesFirst):
    """Short prompts pass long ones, which wait for no more than so many of them.

    A long prompt stands in the order as if it had come `patience` requests later. So it is passed
    by that many at most, and nobody starves.
    """

    short: int = Field(default=64, ge=1, description="A prompt of so many tokens is short.")
    patience: int = Field(default=16, ge=0, description="Requests that may pass a long prompt.")

    def order(self, rows: Sequence[RowView]) -> Sequence[RowView]:
        if rows[0].decodes:
            return super().order(rows)
        return sorted(rows, key=self._rank)

    def _rank(self, row: RowView) -> tuple[int, int]:
        late = self.patience if row.tokens > self.short else 0
        return (row.priority, row.uid + late)
