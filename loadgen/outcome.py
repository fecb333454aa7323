"""What became of one request, and the times that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times are seconds on one clock. `arrivals` are the moments at which new tokens were read.

    `ended_s` is when the last chunk with a choice was read; of a request that failed, when it
    failed. `tokens` and `prompt_tokens` are the server's counts where it gives them; else `tokens`
    counts chunks, and `prompt_tokens` is None.
    """

    name: str
    due_s: float
    sent_s: float
    ended_s: float
    arrivals: tuple[float, ...] = ()
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token; None where none came."""
        return self.arrivals[0] - self.sent_s if self.arrivals else None

    @property
    def e2e_s(self) -> float:
        """From sending to the end of the answer."""
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first one; None where there was no other."""
        if self.tokens < 2 or not self.arrivals:
            return None
        return (self.ended_s - self.arrivals[0]) / (self.tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Times between chunks with new tokens. Several tokens may come in one chunk."""
        return [after - before for before, after in pairwise(self.arrivals)]

    def to_json(self, zero_s: float = 0.0) -> dict[str, Any]:
        """Times in seconds since `zero_s`."""
        return {
            "name": self.name,
            "due_s": self.due_s - zero_s,
            "sent_s": self.sent_s - zero_s,
            "ended_s": self.ended_s - zero_s,
            "ttft_s": self.ttft_s,
            "itl_s": self.itl_s,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "error": self.error,
        }


def peak_concurrency(outcomes: Sequence[Outcome]) -> int:
    """The largest number of requests that were under way at once."""
    # At equal times an end goes before a beginning: the one made room for the other.
    moments = sorted(
        [(each.sent_s, 1) for each in outcomes] + [(each.ended_s, -1) for each in outcomes]
    )
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
