"""How many tokens a call took: the `usage` of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..requests.request import RequestOutput
from ..structured.reasoning import MarkerAutomaton


@dataclass(slots=True)
class Usage:
    """Tokens of one call, over all its prompts and choices; None: not known, or not asked for."""

    prompt: int
    completion: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    reasoning: int | None = None
    warnings: list[str] = field(default_factory=list)
    """Of its grammars, what is not enforced."""

    def ended(self, output: RequestOutput, *, first: bool) -> None:
        """Take in what only an output knows. `first`: of the n of its prompt, which counts once."""
        self.drafted += output.drafted
        self.accepted += output.accepted
        self.warnings += [each for each in output.warnings if each not in self.warnings]
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
            **self.told_warnings(),
        }

    def told_warnings(self) -> dict[str, object]:
        """The key `warnings`, if there are any."""
        return {"warnings": self.warnings} if self.warnings else {}


class ReasoningTokens:
    """Counts the tokens of each choice up to the marker that ends its reasoning, marker included.

    By token ids, as the grammar does that begins there.
    """

    def __init__(self, marker: Sequence[int], choices: int) -> None:
        self._marker = MarkerAutomaton(marker)
        self._states = [0] * choices

    def among(self, choice: int, token_ids: Iterable[int]) -> int:
        """How many of the next tokens of a choice are reasoning."""
        count, state = 0, self._states[choice]
        for token in token_ids:
            if state == self._marker.end:
                break
            count, state = count + 1, self._marker.step(state, token)
        self._states[choice] = state
        return count
