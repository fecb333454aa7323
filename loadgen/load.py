"""What is asked in one benchmark, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import Any

from .arrivals import Arrivals
from .ask import Ask
from .lateness import lateness_note
from .runner import Ran
from .speculation import Counts
from .summary import PERCENTILES, Summary
from .words import WordCost
from .workload import Workload

_WARM_UP_SEED = 1 << 40  # added to the seed: prompts that the load itself does not have


@dataclass(frozen=True)
class Load:
    """What is asked, how often, and when. `warm_up` requests come before, and are not counted."""

    workload: Workload
    count: int
    arrivals: Arrivals = field(default_factory=Arrivals)
    limit: int | None = None
    warm_up: int = 0
    seed: int = 0
    percentiles: tuple[float, ...] = PERCENTILES

    def asks(self, cost: WordCost) -> list[Ask]:
        return self.workload.asks(self.count, self.seed, cost)

    def warm_up_asks(self, cost: WordCost) -> list[Ask]:
        return self.workload.asks(self.warm_up, self.seed + _WARM_UP_SEED, cost)

    def offsets(self, asks: list[Ask]) -> list[float]:
        """When each is due: by its trace, or by the arrivals."""
        due = [ask.at_s for ask in asks if ask.at_s is not None]
        return due if len(due) == len(asks) else self.arrivals.offsets(len(asks), self.seed)

    def to_json(self) -> dict[str, Any]:
        return {
            "num_prompts": self.count,
            **self.arrivals.about(),
            **self.workload.about(),
            "max_concurrency": self.limit,
            "num_warmups": self.warm_up,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Result:
    """What a load came to. `about` says what was loaded, in the words of the JSON result."""

    load: Load
    ran: Ran
    about: Mapping[str, Any]
    speculation: Counts | None = None
    remarks: tuple[str, ...] = ()
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @cached_property
    def summary(self) -> Summary:
        """The figures."""
        return Summary.of(self.ran, self.load.percentiles)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures should know."""
        late = lateness_note(self.ran.late_ms)
        return self.remarks if late is None else (*self.remarks, late)

    def to_json(self, *, requests: bool) -> dict[str, Any]:
        """All figures; with `requests` what became of each as well."""
        found = {
            "date": self.date,
            "stepweave": version("stepweave"),
            **self.about,
            **self.load.to_json(),
            **self.summary.to_json(),
            **(self.speculation.to_json() if self.speculation else {}),
            "interrupted": self.ran.interrupted,
            "client_lateness_p99_ms": self.ran.late_ms,
            "notes": list(self.notes),
        }
        if requests:
            zero_s = self.ran.began_s
            found["requests"] = [each.to_json(zero_s) for each in self.ran.outcomes]
        return found
