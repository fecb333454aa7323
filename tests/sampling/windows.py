"""Draft windows over random histories: what the policies that read history are tried with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

tried = settings(max_examples=60, deadline=None, derandomize=True)
"""Each property is tried on the same examples in every run."""

GARBAGE = (-1, -7, 2**31 - 1)
"""What may stand where there is no token."""


@dataclass(frozen=True)
class Window:
    """`logits[S, W, V]`, `drafts[S, k]`, `history[S, C]`, `window_start[S]`, `prompt[S]`."""

    logits: Tensor
    drafts: Tensor
    history: Tensor
    window_start: Tensor
    prompt: Tensor

    @property
    def rows(self) -> range:
        return range(self.logits.shape[0])

    @property
    def vocab(self) -> int:
        return self.logits.shape[2]

    def contexts(self, row: int) -> list[list[int]]:
        """The tokens before each window position that can be reached, as plain lists."""
        tokens: list[int] = self.history[row, : int(self.window_start[row]) + 1].tolist()
        contexts = [list(tokens)]
        for draft in self.drafts[row].tolist():
            if draft < 0:
                break
            tokens.append(draft)
            contexts.append(list(tokens))
        return contexts

    def output(self, row: int, window_position: int) -> int:
        """The output position of the token at a window position."""
        return int(self.window_start[row] + 1 + window_position - self.prompt[row])

    def only(self, row: int) -> Window:
        """That row alone."""
        at = slice(row, row + 1)
        return Window(
            self.logits[at],
            self.drafts[at],
            self.history[at],
            self.window_start[at],
            self.prompt[at],
        )

    def spoiled(self, filler: int) -> Window:
        """The same window with `filler` wherever nothing may be read."""
        behind = torch.arange(self.history.shape[1]) > self.window_start[:, None]
        ended = (self.drafts < 0).cumsum(dim=1) > 0
        after = ended & (torch.cumsum(ended, dim=1) > 1)  # the first -1 itself must stay one
        return replace(
            self,
            history=self.history.masked_fill(behind, filler),
            drafts=self.drafts.masked_fill(after, filler),
        )


@st.composite
def windows(draw: st.DrawFn, vocab: int = 5) -> Window:
    """Few different tokens, so that they repeat; some rows with missing drafts."""
    rows, k = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    capacity = draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    window_start = integers(0, capacity, rows)
    prompt = 1 + (torch.rand(rows, generator=generator) * (window_start + 1)).floor().long()
    wide = draw(st.sampled_from([torch.int32, torch.int64]))
    return Window(
        logits=torch.randn(rows, k + 1, vocab, generator=generator, dtype=torch.float64) * 3,
        drafts=integers(-1 if draw(st.booleans()) else 0, vocab, rows, k),
        history=integers(0, vocab, rows, capacity).to(wide),
        window_start=window_start,
        prompt=prompt.clamp_max(window_start + 1),
    )
