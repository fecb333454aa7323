"""The sizes that the scheduler, the buffers and the cache agree on."""

from __future__ import annotations

from dataclasses import dataclass


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
