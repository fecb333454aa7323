"""The pinned staging buffers of a step's inputs: laid out once, filled through numpy.

Filling a preallocated buffer through numpy costs a fifth of making a tensor from a list. The
buffers are a slotted, pinned value: the copy to the device reads them, so the plan keeps the next
write away until that copy is done, or derives a second slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...requests.batch import ScheduledRow, StepBatch
from ...requests.limits import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_STOP_TOKENS,
    Limits,
)
from ..data import StagedStep
from .transfer import CPU, packed, pinned

# Columns of `rows`: one entry for each row of the batch.
REQUEST_SLOT, DECODES, SAMPLE, LIMIT, ROW_FIELDS = 0, 1, 2, 3, 4
# Columns of `samples`: one entry for each sampling row.
S_BATCH_INDEX, S_START, S_FORCED, S_SEED, S_PROMPT = 0, 1, 2, 3, 4
S_TOP_K, S_GENERATION, S_DRAFTS, S_STEP, S_FIELDS = 5, 6, 7, 8, 9
# Columns of `warp`, beside it: the settings that are not integers.
W_TEMPERATURE, W_TOP_P, W_MIN_P, W_REPETITION, W_PRESENCE, W_FREQUENCY = range(6)
W_FIELDS = 6
# Columns of `tokens`: one entry for each query token.
T_ID, T_POSITION, T_BATCH_INDEX, T_WINDOW_POSITION, T_NEXT, T_FIELDS = 0, 1, 2, 3, 4, 5
# Columns of `prefix`: one entry for each token that came from the prefix cache.
P_REQUEST_SLOT, P_POSITION, P_ID, P_FIELDS = 0, 1, 2, 3
# Columns of `bans`: a token that may not come before an output position; of `words`: a sequence.
B_SAMPLE_INDEX, B_TOKEN, B_MINIMUM, B_FIELDS = 0, 1, 2, 3
WORD_SAMPLE_INDEX, WORD_LENGTH, WORD_TOKENS = 0, 1, 2


IntArray = npt.NDArray[np.int64]


class Staging:
    """Buffers for the largest step that the limits allow.

    `tokens[T, 5]`: token id and position (prefill) or −1 (decode: the device knows), the batch
    index of its row, its position in the draft window, the token after it (−1: yet to be sampled).
    `rows[N, 4]`, `blocks[N, B]`, `samples[S, 9]`, `warp[S, 6]`, `logit_index[S, k + 1]` (indices
    of tokens whose logits are wanted), `prefix[C, 3]`, `prompt[T, 2]` (indices of tokens whose
    prediction of a known next token is asked for, and that token). What few requests use is
    sparse, each entry with its index among the sampling rows: `biases[·, 2]` and
    `bias_values[·]`, `bans[·, 3]`, `words[·, 2 + L]`.
    """

    fixed = True
    """Its tensors never move: captured graphs know it by identity."""

    def __init__(self, limits: Limits, device: torch.device = CPU) -> None:
        rows, tokens, window = limits.max_rows, limits.token_budget, limits.window
        self.limits = limits
        buffer = partial(pinned, device=device)
        self.tokens = buffer(tokens, T_FIELDS)
        self.rows = buffer(rows, ROW_FIELDS)
        self.blocks = buffer(rows, limits.blocks_for(limits.context_length))
        self.samples = buffer(rows, S_FIELDS)
        self.logit_index = buffer(rows, window)
        self.warp = buffer(rows, W_FIELDS, dtype=torch.float64)
        self.prefix = buffer(limits.context_length, P_FIELDS)
        self.prompt = buffer(tokens, 2)
        self.biases = buffer(rows * MAX_BIASES, 2)
        self.bias_values = buffer(rows * MAX_BIASES, dtype=torch.float64)
        self.bans = buffer(rows * MAX_STOP_TOKENS, B_FIELDS)
        self.words = buffer(rows * MAX_BAD_WORDS, WORD_TOKENS + MAX_BAD_WORD_TOKENS)

    def fill(self, batch: StepBatch) -> StagedStep:
        """Write the batch into the buffers; the sizes that shape the device work."""
        window_positions, rounded = np.arange(batch.width), batch.padding is not None
        token_fields, row_fields = self.tokens.numpy(), self.rows.numpy()
        widest = self.blocks.shape[1] if rounded else max(len(row.blocks) for row in batch.rows)
        blocks = packed(self.blocks, batch.padded_size, widest).numpy()
        logit_index = packed(self.logit_index, batch.samples, batch.width).numpy()
        at = sampled = prefixed = prompted = 0
        for batch_index, row in enumerate(batch.rows):
            count = batch.width if rounded else row.queries
            tokens = token_fields[at : at + count]
            tokens[:, T_BATCH_INDEX] = batch_index
            if row.decodes:
                tokens[:, T_ID] = tokens[:, T_POSITION] = tokens[:, T_NEXT] = -1
                tokens[:, T_WINDOW_POSITION] = window_positions[:count]
            else:
                tokens[:, T_ID] = row.tokens
                tokens[:, T_POSITION] = np.arange(row.start, row.start + count)
                tokens[:, T_WINDOW_POSITION] = 0
                tokens[:-1, T_NEXT] = row.tokens[1:]
                tokens[-1, T_NEXT] = row.following
                prompted += self._ask_for_prompt(row, at, prompted)
            row_fields[batch_index] = (
                row.request_slot,
                row.decodes,
                sampled if row.samples else -1,
                row.limit,
            )
            blocks[batch_index, : len(row.blocks)] = row.blocks
            blocks[batch_index, len(row.blocks) :] = 0  # the scratch block
            prefixed += self._prefix(row, prefixed)
            if row.samples:
                # A row with a smaller window repeats the index of its last token.
                last = row.queries - 1
                offsets = np.minimum(window_positions, last) if row.decodes else last
                logit_index[sampled] = at + offsets
                self._sample(row, batch_index, sampled, batch.step)
                sampled += 1
            at += count
        if batch.padding:
            self._pad(batch, blocks, logit_index)
            at += batch.padding * batch.width
        return StagedStep(
            staging=self,
            tokens=at,
            query_lens=(batch.width,) * batch.padded_size
            if rounded
            else tuple(row.queries for row in batch.rows),
            blocks=widest,
            samples=batch.samples,
            width=batch.width,
            draft_width=batch.draft_width,
            decodes=batch.padded_size if rounded else sum(row.decodes for row in batch.rows),
            prefix=prefixed,
            prompt=prompted,
            biases=self._biases(batch.sampling),
            bans=self._bans(batch.sampling),
            words=self._words(batch.sampling),
            longest=self.limits.context_length if rounded else max(row.most for row in batch.rows),
            forced=any(row.forced >= 0 for row in batch.sampling),
            greedy=batch.all_greedy,
            any_top_k=batch.any_top_k,
            any_top_p=batch.any_top_p,
            penalized=any(row.request.params.penalized for row in batch.sampling),
            structured=batch.structured,
            logprobs=batch.logprobs,
            prompt_logprobs=batch.prompt_logprobs,
            one_off=not rounded,
        )

    def _pad(self, batch: StepBatch, blocks: IntArray, logit_index: IntArray) -> None:
        """Rows of no request, after the others: masked tokens of a row that nobody owns."""
        rows, width, count = len(batch.rows), batch.width, batch.padding or 0
        added, at = np.arange(rows, rows + count), rows * width
        tokens = self.tokens.numpy()[at : at + count * width]
        tokens[:, T_ID] = tokens[:, T_POSITION] = tokens[:, T_NEXT] = -1
        tokens[:, T_BATCH_INDEX] = added.repeat(width)
        tokens[:, T_WINDOW_POSITION] = np.tile(np.arange(width), count)
        self.rows.numpy()[added] = np.stack(
            [
                np.full(count, self.limits.max_rows),
                np.zeros(count, dtype=np.int64),
                added,
                np.full(count, self.limits.context_length),
            ],
            axis=1,
        )
        blocks[added] = 0
        logit_index[added] = added[:, None] * width + np.arange(width)
        samples = self.samples.numpy()[rows : rows + count]
        samples[:] = 0
        samples[:, S_BATCH_INDEX] = added
        samples[:, S_START] = samples[:, S_FORCED] = samples[:, S_GENERATION] = -1
        warp = self.warp.numpy()[rows : rows + count]
        warp[:] = 0
        warp[:, W_TOP_P] = warp[:, W_REPETITION] = 1

    def _sample(self, row: ScheduledRow, batch_index: int, sample_index: int, step: int) -> None:
        request, params = row.request, row.request.params
        self.samples.numpy()[sample_index] = (
            batch_index,
            -1 if row.decodes else row.start + len(row.tokens) - 1,
            row.forced,
            params.seed,
            request.prompt_tokens,
            params.top_k,
            row.generation,
            request.window - 1,
            step,
        )
        self.warp.numpy()[sample_index] = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )

    def _prefix(self, row: ScheduledRow, at: int) -> int:
        count = len(row.prefix)
        if count:
            entries = self.prefix.numpy()[at : at + count]
            entries[:, P_REQUEST_SLOT] = row.request_slot
            entries[:, P_POSITION] = np.arange(count)
            entries[:, P_ID] = row.prefix
        return count

    def _ask_for_prompt(self, row: ScheduledRow, at: int, asked: int) -> int:
        """Tokens of this chunk that predict a token of the prompt, if the request wants them."""
        targets = row.prompt_targets
        if targets:
            entries = self.prompt.numpy()[asked : asked + len(targets)]
            entries[:, 0] = np.arange(at, at + len(targets))
            entries[:, 1] = targets
        return len(targets)

    def _biases(self, rows: Sequence[ScheduledRow]) -> int:
        entries = [
            (sample_index, token, value)
            for sample_index, row in enumerate(rows)
            for token, value in row.request.params.biases
        ]
        if entries:
            sample_indices, tokens, values = zip(*entries, strict=True)
            self.biases.numpy()[: len(entries), 0] = sample_indices
            self.biases.numpy()[: len(entries), 1] = tokens
            self.bias_values.numpy()[: len(entries)] = values
        return len(entries)

    def _bans(self, rows: Sequence[ScheduledRow]) -> int:
        """Stop tokens of the rows that may still be too short to stop."""
        return _put(
            self.bans,
            (
                (sample_index, token, row.request.params.min_tokens)
                for sample_index, row in enumerate(rows)
                if row.too_short
                for token in row.request.stop_tokens
            ),
        )

    def _words(self, rows: Sequence[ScheduledRow]) -> int:
        return _put(
            self.words,
            (
                (sample_index, len(word), *(-1,) * (MAX_BAD_WORD_TOKENS - len(word)), *word)
                for sample_index, row in enumerate(rows)
                for word in row.request.bad_words
            ),
        )


def _put(buffer: Tensor, entries: Iterable[tuple[int, ...]]) -> int:
    found = list(entries)
    if found:
        buffer.numpy()[: len(found)] = found
    return len(found)
