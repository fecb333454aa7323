"""The sizes that the scheduler, the buffers, the cache and requests agree on."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LOGPROBS = 32
"""Most alternatives a request may ask for beside each token."""

MAX_BIASES = 512
"""Most tokens a request may give a bias: what the staging buffers hold for each row."""

MAX_STOP_TOKENS = 64
"""Most stop tokens of a request, end of sequence included."""

MAX_BAD_WORDS = 256
"""Most token sequences a request may forbid; a word can take two, with and without a space."""

MAX_BAD_WORD_TOKENS = 16
"""Longest forbidden sequence, in tokens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that the scheduler works within; tokens and blocks are counts, not bytes."""

    max_rows: int
    token_budget: int
    block_size: int
    num_blocks: int  # without the scratch block
    context_length: int
    draft_tokens: int  # k; 0 without a drafter
    max_queue: int

    @property
    def window(self) -> int:
        """Query tokens of the widest decode row: its last token and k drafts."""
        return self.draft_tokens + 1

    def blocks_for(self, tokens: int) -> int:
        return -(-min(tokens, self.context_length) // self.block_size)
