"""The sizes that the scheduler, the buffers, the cache and requests agree on."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.cache_dtype import CacheDType

LEAST_TEMPERATURE = 2.0**-126
"""Logits are divided by it: the least normal number of float32. Below it a request is greedy."""

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

MAX_MATCH = 50
"""Most tokens that the end of a text is compared with what stands earlier: of n-grams, and DRY."""

MAX_NODE_SETTINGS = 32
"""Most numbers that a request may give to nodes of the pipeline."""

MAX_DRY_BREAKERS = 32
"""Most sequence breakers of a request: what the staging buffers hold for each row."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that the scheduler works within; tokens and blocks are counts, not bytes."""

    max_rows: int  # requests in one step, at most
    token_budget: int  # tokens in one step, at most
    block_size: int  # tokens of a KV block
    num_blocks: int  # without the scratch block
    context_length: int  # tokens of a request's prompt and output, at most
    draft_tokens: int  # k; 0 without a drafter
    max_queue: int  # requests that may wait, at most
    cache_dtype: CacheDType = "auto"  # in which KV caches keep their numbers
    rope_switch: int | None = None  # tokens of a text before its model computes all of it anew

    @property
    def window(self) -> int:
        """Query tokens of the widest decode row: its last token and k drafts."""
        return self.draft_tokens + 1

    @property
    def cache_blocks(self) -> int:
        """Blocks of a KV cache, with the scratch block, which no request gets."""
        return self.num_blocks + 1

    def context_of(self, *, long: bool) -> int:
        """Tokens that a row may come to: a short one to the first that its model computes anew."""
        if self.rope_switch is None or long:
            return self.context_length
        return min(self.rope_switch + 1, self.context_length)

    def is_long(self, settled: int) -> bool:
        """Whether a text of so many tokens is beyond the model's original context."""
        return self.rope_switch is not None and settled > self.rope_switch

    def blocks_for(self, tokens: int) -> int:
        return -(-min(tokens, self.context_length) // self.block_size)
