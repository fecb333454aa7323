"""What an engine has done so far, counted while it works."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import FinishReason


@dataclass
class Totals:
    """Counts over all runs of an engine. Tokens and drafts are settled ones only.

    One thread at a time adds to them; any may read, and finds each count as it was a moment ago.
    """

    tokens: int = 0
    steps: int = 0  # with at least one row
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # windows whose i-th draft was accepted
    windows: int = 0  # in which at least one draft was verified
    preemptions: int = 0
    swapped_out: int = 0  # KV blocks copied to host memory
    swapped_in: int = 0  # … and back
    encoded: int = 0  # images, each as often as it was encoded
    failed_steps: int = 0  # and were recovered from
    # By plan before, plan after and reason: how often a run went over.
    switches: dict[tuple[str, str, str], int] = field(default_factory=dict)
    requests: int = 0  # prompts that were handed in, whatever became of them
    failed_requests: int = 0  # prompts that ended with an error, refused ones included
    prompt_tokens: int = 0  # of requests that have ended
    cached_tokens: int = 0  # of the prompts' tokens, found computed
    forked_tokens: int = 0  # … by one of n completions, of a prompt that another had computed
    copied_blocks: int = 0  # KV blocks copied for one of n completions, to write on in them
    seconds: float = 0.0  # in which a run was on
    ended: dict[FinishReason, int] = field(default_factory=dict)  # requests, those of n each

    def end(self, reason: FinishReason) -> None:
        """One request has ended."""
        self.ended[reason] = self.ended.get(reason, 0) + 1

    def switch(self, before: str, after: str, reason: str) -> None:
        """A run goes from one plan to another."""
        move = (before, after, reason)
        self.switches[move] = self.switches.get(move, 0) + 1

    def settle(self, tokens: int, drafted: int, accepted: int) -> None:
        """One row of a step: of `drafted` drafts, the first `accepted` were kept."""
        self.tokens += tokens
        if drafted:
            self.windows += 1
            self.drafted += drafted
            self.accepted += accepted
            while len(self.accepted_at) < drafted:
                self.accepted_at.append(0)
            for position in range(accepted):
                self.accepted_at[position] += 1

    def acceptance_length(self, before: Totals | None = None) -> float | None:
        """Tokens that a window of drafts comes to, the one that the model adds included: the mean,
        since the counts of `before`; None where there was no window.

        The same of chains and of trees, of which most drafts are alternatives to what is kept.
        """
        windows = self.windows - (0 if before is None else before.windows)
        accepted = self.accepted - (0 if before is None else before.accepted)
        return 1 + accepted / windows if windows > 0 else None

    def copy(self) -> Totals:
        """The counts of now."""
        return replace(
            self,
            accepted_at=[*self.accepted_at],
            ended={**self.ended},
            switches={**self.switches},
        )

    def restore(self, before: Totals) -> None:
        """Forget what was counted since that copy."""
        for each in fields(self):
            setattr(self, each.name, getattr(before, each.name))
        self.accepted_at, self.ended = [*before.accepted_at], {**before.ended}
        self.switches = {**before.switches}
