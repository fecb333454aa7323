"""stopping: whether a request ends before its own conditions end it."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from .policy import Policy


class OutputView(NamedTuple):
    """The output of a request up to its newest settled token."""

    tokens: tuple[int, ...]  # never a draft, and never one that a later check takes back
    text: str  # of these tokens; a character that is not complete yet is not in it


@runtime_checkable
class Stopping(Protocol):
    """Ends requests early.

    What a request asks for itself (stop tokens, stop strings, `max_tokens`) always holds: a policy
    can only end it sooner. It is asked for each settled token in order, from `min_tokens` on, and
    never for drafts, so the end does not depend on how tokens were split into steps.
    """

    @property
    def asks(self) -> bool:
        """Whether it is to be asked at all."""
        ...

    def ends(self, output: OutputView) -> bool:
        """Whether the request ends with this token, which is its last; the reason is "stop"."""
        ...


class AsAsked(Policy):
    """Each request ends as it asks, and no sooner."""

    @property
    def asks(self) -> bool:
        return False

    def ends(self, output: OutputView) -> bool:
        return False


class Repetition(Policy):
    """A request ends once it says the same again and again."""

    times: int = Field(
        default=8, ge=2, le=1 << 16, description="So many equal pieces in a row end the request."
    )
    longest: int = Field(
        default=32, ge=1, le=1 << 16, description="Tokens of such a piece, at most."
    )

    @property
    def asks(self) -> bool:
        return True

    def ends(self, output: OutputView) -> bool:
        tokens = output.tokens
        for length in range(1, min(self.longest, len(tokens) // self.times) + 1):
            said = tokens[-length * self.times :]
            if said[length:] == said[:-length]:
                return True
        return False
