"""The pinned staging buffers of a step's inputs: laid out once, filled through numpy.

Filling a preallocated buffer through numpy costs a fifth of making a tensor from a list. The
buffers are a slotted, pinned value: the copy to the device reads them, so the plan keeps the next
write away until that copy is done, or derives a second slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..requests.batch import StepBatch
from ..requests.table import Limits

# Columns of `rows`: one line for each row of the batch.
ROW, DECODES, ROW_FIELDS = 0, 1, 2
# Columns of `samples`: one line for each sampling row.
S_LINE, S_BASE, S_FORCED, S_SEED, S_PROMPT, S_TOP_K, S_GENERATION, S_FIELDS = 0, 1, 2, 3, 4, 5, 6, 7
# Columns of `tokens`: one line for each query token.
T_ID, T_POSITION, T_LINE, T_COLUMN, T_FIELDS = 0, 1, 2, 3, 4


def _buffer(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, pin_memory=torch.cuda.is_available())


class Staging:
    """Buffers for the largest step that the limits allow.

    `tokens[T, 4]`: token id and position (prefill) or −1 (decode: the device knows), the line of
    its row, its column in the draft window. `rows[N, 2]`, `blocks[N, B]`, `samples[S, 7]`,
    `logit_index[S, k + 1]` (token lines whose logits are wanted), `warp[S, 2]` (temperature,
    top-p).
    """

    def __init__(self, limits: Limits) -> None:
        rows, tokens, window = limits.max_rows, limits.token_budget, limits.window
        self.limits = limits
        self.tokens = _buffer(tokens, T_FIELDS)
        self.rows = _buffer(rows, ROW_FIELDS)
        self.blocks = _buffer(rows, limits.blocks_for(limits.context_length))
        self.samples = _buffer(rows, S_FIELDS)
        self.logit_index = _buffer(rows, window)
        self.warp = _buffer(rows, 2, dtype=torch.float64)
        self._tokens = self.tokens.numpy()
        self._rows = self.rows.numpy()
        self._blocks = self.blocks.numpy()
        self._samples = self.samples.numpy()
        self._logit_index = self.logit_index.numpy()
        self._warp = self.warp.numpy()

    def fill(self, batch: StepBatch) -> StagedStep:
        """Write the batch into the buffers; the sizes that shape the device work."""
        window = self.limits.window
        columns = np.arange(window)
        at = sampled = 0
        widest = 1
        lengths: list[int] = []
        for line, row in enumerate(batch.rows):
            count = window if row.decodes else len(row.tokens)
            tokens = self._tokens[at : at + count]
            tokens[:, T_LINE] = line
            if row.decodes:
                tokens[:, T_ID] = -1
                tokens[:, T_POSITION] = -1
                tokens[:, T_COLUMN] = columns
            else:
                tokens[:, T_ID] = row.tokens
                tokens[:, T_POSITION] = np.arange(row.start, row.start + count)
                tokens[:, T_COLUMN] = 0
            self._rows[line] = (row.row, row.decodes)
            self._blocks[line, : len(row.blocks)] = row.blocks
            self._blocks[line, len(row.blocks) :] = 0  # the scratch block
            widest = max(widest, len(row.blocks))
            if row.samples:
                params = row.request.params
                self._samples[sampled] = (
                    line,
                    -1 if row.decodes else row.start + count - 1,
                    row.forced,
                    params.seed,
                    len(row.request.prompt_ids),
                    params.top_k,
                    row.generation,
                )
                self._warp[sampled] = (params.temperature, params.top_p)
                # A prefill row has one line of logits; the rest of its window repeats it.
                self._logit_index[sampled] = (
                    at + columns if row.decodes else np.full(window, at + count - 1)
                )
                sampled += 1
            lengths.append(count)
            at += count
        decodes = sum(row.decodes for row in batch.rows)
        return StagedStep(
            self, at, tuple(lengths), widest, sampled, decodes, batch.all_greedy, batch.structured
        )


@dataclass(frozen=True, slots=True)
class StagedStep:
    """Filled buffers, and what the host knows of the step: sizes, never tokens.

    `decodes` rows lie before the prefill rows. `greedy`: no sampling row draws at random.
    `structured`: some row must not be sampled without its mask.
    """

    staging: Staging
    tokens: int
    query_lens: tuple[int, ...]
    blocks: int
    samples: int
    decodes: int
    greedy: bool
    structured: bool
