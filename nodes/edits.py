"""What requests change about their logits, place by place of a draft window, on the device.

Place j of a window is judged as if the drafts before it were accepted, so penalties and bad words
count them; what was settled is read from the device's own history. A placeholder is never an
index. The order is that of `SamplingParams`; a grammar's mask closes tokens before bans do, so that
a ban can give way where the grammar leaves nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..sampling.bad_words import ban_bad_words
from ..sampling.bias import apply_bias, ban_until, give_way
from ..sampling.penalties import apply_penalties
from ..structured.bitmask import apply_bitmask
from .staging import (
    B_LINE,
    B_MINIMUM,
    B_TOKEN,
    W_FREQUENCY,
    W_REPETITION,
    WORD_LENGTH,
    WORD_LINE,
    WORD_TOKENS,
    StagedStep,
)
from .transfer import upload


@dataclass(frozen=True, slots=True)
class Edits:
    """The changes of a step's S sampling rows; None where no row asks for any of a kind.

    `penalties[S, 3]`: repetition, presence, frequency. Sparse entries name their sampling row:
    `biases[B, 2]` (row, token) with `bias_values[B]`; `bans[B, 3]` (row, token, the first output
    position that may be it); `words[M, 2 + L]` (row, length, tokens, right-aligned).
    """

    penalties: Tensor | None = None
    biases: Tensor | None = None
    bias_values: Tensor | None = None
    bans: Tensor | None = None
    words: Tensor | None = None

    @staticmethod
    def of(staged: StagedStep, warp: Tensor) -> Edits:
        """Copy what this step uses of the staging buffers to the device."""
        staging = staged.staging

        def used(buffer: Tensor, count: int) -> Tensor | None:
            return upload(buffer[:count], warp.device) if count else None

        return Edits(
            penalties=warp[:, W_REPETITION : W_FREQUENCY + 1] if staged.penalized else None,
            biases=used(staging.biases, staged.biases),
            bias_values=used(staging.bias_values, staged.biases),
            bans=used(staging.bans, staged.bans),
            words=used(staging.words, staged.words),
        )

    def apply(
        self,
        logits: Tensor,
        drafts: Tensor,
        history: Tensor,
        base: Tensor,
        prompt: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """`logits[S, W, V]` as the requests and their grammars want them.

        `drafts[S, W − 1]`, `history[S, C]` right up to `base[S]`, `prompt[S]` its part that is
        prompt; `mask[S, W, V / 32]` from the grammars, None where no row has one.
        """
        if self.biases is not None and self.bias_values is not None:
            logits = apply_bias(logits, self.biases[:, 0], self.biases[:, 1], self.bias_values)
        if self.penalties is not None:
            repetition, presence, frequency = self.penalties.unbind(dim=1)
            logits = apply_penalties(
                logits, drafts, history, base, prompt, repetition, presence, frequency
            )
        rows, width, vocab = logits.shape
        if mask is not None:
            masked = apply_bitmask(
                logits.reshape(rows * width, vocab), mask.reshape(rows * width, -1)
            )
            logits = masked.view(rows, width, vocab)
        banned = logits
        if self.words is not None:
            banned = ban_bad_words(
                banned,
                drafts,
                history,
                base,
                self.words[:, WORD_LINE],
                self.words[:, WORD_LENGTH],
                self.words[:, WORD_TOKENS:],
            )
        if self.bans is not None:
            banned = ban_until(
                banned,
                base + 1 - prompt,
                self.bans[:, B_LINE],
                self.bans[:, B_TOKEN],
                self.bans[:, B_MINIMUM],
            )
        return logits if banned is logits else give_way(banned, logits)
