"""resumption: whether a request that gives way keeps its keys and values on the host."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from .policy import Policy


class LeavingView(NamedTuple):
    """A request that gives its row and blocks back, and of which something could be kept."""

    uid: int
    blocks: int  # KV blocks that would be copied to host memory now, and back when it resumes
    tokens: int  # in these blocks: what would be computed again in their place


@runtime_checkable
class Resumption(Protocol):
    """Says where a request that gives way finds its keys and values again.

    The request table asks it only where a node copies blocks to host memory, and only for blocks
    that nobody shares. Both ways give the same tokens, so it decides about time alone. All ranks of
    a group ask it, and must be answered alike: decide from the view, not from a clock.
    """

    def keeps(self, leaving: LeavingView) -> bool:
        """Whether its blocks are to be copied; where the host has no room, they are not."""
        ...


class KeptOnHost(Policy):
    """What is in place waits in host memory, as long as there is room."""

    def keeps(self, leaving: LeavingView) -> bool:
        return True


class Cheaper(Policy):
    """Whichever is predicted to take less: two copies of its blocks, or its tokens again."""

    block_us: float = Field(
        ge=0, le=1e9, description="What a copy of one KV block takes, of all layers, in µs."
    )
    token_us: float = Field(
        ge=0, le=1e9, description="What one more token of a prompt takes in a step, in µs."
    )
    start_us: float = Field(
        default=0.0, ge=0, le=1e9, description="What the copies of a request take before the first."
    )

    def keeps(self, leaving: LeavingView) -> bool:
        return 2 * (self.start_us + leaving.blocks * self.block_us) < leaving.tokens * self.token_us
