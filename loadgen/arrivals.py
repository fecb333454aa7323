"""When each request of a load is due."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from .choices import RampUp


@dataclass(frozen=True)
class Arrivals:
    """Requests come in bursts of `burst`, `rate` requests a second on average; inf: all at once.

    The gaps between bursts are gamma distributed with shape `burstiness`: 1 is a Poisson process,
    less is more irregular, more is more regular. With `ramp_up` the rate goes from `start` to `end`
    in the course of the requests.
    """

    rate: float = inf
    burstiness: float = 1.0
    burst: int = 1
    ramp_up: RampUp | None = None
    start: float = 0.0
    end: float = 0.0

    def offsets(self, count: int, seed: int) -> list[float]:
        """Seconds from the first request, which is due at 0, to each, in order."""
        bursts = -(-count // self.burst)
        if self.rate == inf and self.ramp_up is None:
            return [0.0] * count
        draw = np.random.default_rng(seed)
        gaps = [
            self.burst * float(draw.gamma(self.burstiness, 1 / self.burstiness)) / self._rate(share)
            for share in np.linspace(0, 1, bursts)[1:]
        ]
        moments = np.concatenate([[0.0], np.cumsum(gaps)])
        return [float(moments[index // self.burst]) for index in range(count)]

    def about(self) -> dict[str, Any]:
        """What they are, for the JSON result."""
        found = {
            "request_rate": "inf" if self.rate == inf else self.rate,
            "burstiness": self.burstiness,
            "burst": self.burst,
        }
        if self.ramp_up is None:
            return found
        return {
            **found,
            "request_rate": None,
            "ramp_up_strategy": self.ramp_up.value,
            "ramp_up_start_rps": self.start,
            "ramp_up_end_rps": self.end,
        }

    def _rate(self, share: float) -> float:
        """Requests a second when so much of the load has come."""
        if self.ramp_up is None:
            return self.rate
        if self.ramp_up is RampUp.LINEAR:
            return self.start + (self.end - self.start) * share
        return float(self.start * (self.end / self.start) ** share)
