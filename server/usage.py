"""How many tokens a call took: the `usage` of an answer."""

from __future__ import annotations

from dataclasses import dataclass

from ..requests.request import RequestOutput


@dataclass(slots=True)
class Usage:
    """Tokens of one call, over all its prompts and choices; None: not known, or not asked for."""

    prompt: int
    completion: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    reasoning: int | None = None

    def ended(self, output: RequestOutput, *, first: bool) -> None:
        """Take in what only an output knows. `first`: of the n of its prompt, which counts once."""
        self.drafted += output.drafted
        self.accepted += output.accepted
        if first:
            self.cached += output.cached_tokens

    def so_far(self) -> dict[str, object]:
        """What is known while tokens come."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }

    def to_json(self) -> dict[str, object]:
        """All of it."""
        details: dict[str, object] = {
            "accepted_prediction_tokens": self.accepted,
            "rejected_prediction_tokens": self.drafted - self.accepted,
        }
        if self.reasoning is not None:
            details["reasoning_tokens"] = self.reasoning
        return {
            **self.so_far(),
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": details,
        }
