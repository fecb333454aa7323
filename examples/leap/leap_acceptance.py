"""among_best: an acceptance rule that keeps the drafts that the target nearly chose."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from stepweave.policies import Policy
from stepweave.sampling import Verified, Windows


class AmongBest(Policy):
    """Keep a draft that is among the target's best tokens. The output is not the model's.

    Rows that draw at random only: of a greedy row the best token alone is kept.
    """

    exact: ClassVar[bool] = False  # tokens depend on the drafts
    compares: ClassVar[bool] = False  # what drafts were drawn from is not needed
    couples: ClassVar[bool] = False  # so drafters offer their most likely tokens

    best: int = Field(default=3, ge=1, description="Of so many tokens a draft must be one.")

    def verify(self, windows: Windows) -> Verified:
        import torch

        from stepweave.sampling import prefix, then_drawn, usable

        target, drafts = windows.target, windows.drafts  # [R, k + 1, V] and [R, k]
        vocab, k = target.shape[-1], drafts.shape[1]
        scores = target[:, :k]
        score = scores.gather(-1, drafts.clamp(0, vocab - 1)[..., None])  # [R, k, 1]
        better = (scores > score).sum(dim=-1)
        near = (better < self.best) & (score[..., 0] > -torch.inf)  # masked tokens never
        first = drafts == scores.argmax(dim=-1)
        keeps = torch.where(windows.greedy[:, None], first, near)
        return then_drawn(windows, prefix(usable(drafts, windows.valid, vocab) & keeps))
