"""When a request was asked for, submitted, scheduled, given its first token and ended.

Noted for every request, at the moment it happens: five readings of the clock in its life.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from time import perf_counter


@dataclass(slots=True)
class Moments:
    """Times of one request, in seconds of `time.perf_counter`; None: it has not come to that.

    asked … submitted: its grammar is compiled. … scheduled: it waits for a row. … first token:
    its prompt is computed, and a first token settled. … ended: it decodes.
    """

    asked_s: float = field(default_factory=perf_counter)
    submitted_s: float | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None

    def durations(self, tokens: int) -> RequestTimings:
        """What the moments come to for an output of so many tokens."""
        return RequestTimings(
            queue_s=self._since_asked(self.scheduled_s),
            first_token_s=self._since_asked(self.first_token_s),
            per_token_s=self._per_token(tokens),
            total_s=self._since_asked(self.ended_s),
        )

    def _since_asked(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self.asked_s

    def _per_token(self, tokens: int) -> float | None:
        if self.first_token_s is None or self.ended_s is None or tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) / (tokens - 1)


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """How long a request waited and decoded, in seconds; None for what it did not come to.

    `queue_s`: from when it was asked for until a step first had it, its grammar's compilation
    included. `first_token_s`: from when it was asked for until its first token was settled.
    `per_token_s`: the mean of each token after the first. `total_s`: until it ended.
    """

    queue_s: float | None = None
    first_token_s: float | None = None
    per_token_s: float | None = None
    total_s: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """To the microsecond."""
        return {name: None if s is None else round(s, 6) for name, s in asdict(self).items()}
