"""preemption: which running request gives its row and blocks back where they run out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from .policy import Policy


class RunningView(NamedTuple):
    """A running request that may be preempted; views sort by priority and then by arrival."""

    priority: int  # lower is better
    uid: int  # counts up in the order of arrival
    tokens: int  # settled ones of prompt and output: what would be computed again, at most
    blocks: int  # KV blocks that it holds, shared ones included


@runtime_checkable
class Preemption(Protocol):
    """Names a victim.

    The request table asks it with the requests that may be named, and holds it to them: none of
    them is in the batch of the step yet, and none has a better priority than the request that needs
    the blocks. That request is among them: named itself, it sits the step out.

    A preempted request begins its next draft window where it would have begun without, so its
    tokens stay the same. For everybody to end, some request must never be named while the others
    run: order them by something that a preemption does not improve.
    """

    def victim(self, running: Sequence[RunningView]) -> int:
        """The `uid` of the one to preempt, of at least one that may be."""
        ...


class LastCome(Policy):
    """Of the lowest priority, the request that came last: it has lost least."""

    def victim(self, running: Sequence[RunningView]) -> int:
        return max(running).uid


class FewestTokens(Policy):
    """Of the lowest priority, the request with the fewest tokens to compute again."""

    def victim(self, running: Sequence[RunningView]) -> int:
        return max(running, key=lambda view: (view.priority, -view.tokens, view.uid)).uid
