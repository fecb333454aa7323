"""What a request comes to, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import RequestOutput, TokenLogprob


@dataclass(frozen=True, slots=True)
class Increment:
    """What one step settled of one request.

    `text` may be empty though there are tokens: part of a character, or of what may become a stop
    string, is held back. `logprobs` has one entry per token; None if they were not asked for. The
    last increment of a request has its `output`, and nothing else.
    """

    id: str  # of the request: of n completions, `id/index`
    index: int  # which of the n completions of its prompt it belongs to
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    output: RequestOutput | None = None


Deliver = Callable[[Increment], None]
"""Takes an increment on the thread that settled it: must neither wait nor raise."""
