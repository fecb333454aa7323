"""A simulated run of one plan, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..configs.abstract import AbstractGraph
from ..configs.costs import Costs
from ..graph.answers.extensions import extensions
from ..timelines.analysis import analyse
from ..timelines.critical import chain
from ..timelines.modes import WordTime, simulated_words
from ..timelines.simulated import simulate
from ..timelines.timeline import Span, Timeline
from .planned import Planned, planned_with

if TYPE_CHECKING:
    from .verbs import SimulateOptions


class Gain(NamedTuple):
    """What steps take, simulated, in a plan of which is `said` how it does without an extension."""

    name: str
    said: str
    without_us: float


@dataclass(frozen=True)
class Simulation:
    """A simulated run of one plan, and what it comes to per step in steady state."""

    name: str
    made: Planned
    timeline: Timeline
    asked: SimulateOptions

    @staticmethod
    def of(asked: SimulateOptions, overrides: Mapping[str, Any], costs: Costs | None) -> Simulation:
        made = planned_with(asked.config, overrides, costs, asked.rows)
        config = made.loaded.config
        serial = not isinstance(config, AbstractGraph) and config.executor == "serial"
        timeline = simulate(
            made.plan,
            steps=asked.step_count,
            jitter=asked.jitter,
            seed=asked.drawn_by,
            serial=serial,
        )
        return Simulation(asked.config, made, timeline, asked)

    @property
    def how(self) -> str:
        """`threads, depth 2`."""
        config = self.made.loaded.config
        if isinstance(config, AbstractGraph):
            return "abstract"
        return f"{config.executor}, depth {config.depth}"

    @property
    def period_us(self) -> float:
        return self.timeline.period_us

    @property
    def step_us(self) -> float:
        """The same for one step, where the steps of the timeline are cycles of several."""
        return self.period_us / self.made.plan.graph.cycle

    @property
    def rows(self) -> int:
        return self.made.times.rows if self.made.times else 1

    @property
    def predicted_us(self) -> float:
        """The plan's period, or the sum of all ops where nothing overlaps."""
        if self.how.startswith("serial"):
            return self.busy_us("host") + self.busy_us("device")
        return self.made.plan.period_us

    @property
    def tokens_per_second(self) -> float | None:
        """Of all rows together; None where `tpot_us` is."""
        return None if self.tpot_us is None else self.rows / self.tpot_us * 1e6

    @property
    def tpot_us(self) -> float | None:
        """Time per output token of one row.

        None where nobody said how many tokens a row gets in a step, or where steps take no time.
        """
        tokens = self.asked.tokens_per_step
        return self.step_us / tokens if tokens is not None and self.step_us else None

    @property
    def words(self) -> list[WordTime]:
        """Each mode by itself, and the sequence that takes longest, where the plan has modes."""
        if self.how.startswith("serial"):
            return []
        return simulated_words(self.made.plan, steps=self.asked.step_count)

    @property
    def gains(self) -> list[Gain]:
        """What each extension of the graph gains, simulated without it in the same way."""
        if self.how.startswith("serial"):
            return []
        asked, found = self.asked, []
        for name, said, without in extensions(self.made.plan):
            other = simulate(
                without, steps=asked.step_count, jitter=asked.jitter, seed=asked.drawn_by
            )
            found.append(Gain(name, said, other.period_us / without.graph.cycle))
        return found

    @property
    def device_gap_us(self) -> dict[str, float]:
        return {name: self.timeline.gap_us(name) for name in sorted(self.timeline.streams)}

    def busy_us(self, side: str) -> float:
        """What all ops of a side take in a period."""
        plan = self.made.plan
        return sum(plan.costs[op] for op, v in plan.graph.vertices.items() if v.side == side)

    @property
    def overlap(self) -> float | None:
        """The share of the host's time in which a stream is busy; None for too few steps."""
        return analyse(self.timeline).overlap.hidden if self.timeline.steady else None

    @property
    def critical_path(self) -> dict[str, float]:
        """By op: its share of the chain of ops that held each other, in steady state."""
        return self._shares(lambda span: span.op)

    @property
    def bound_by(self) -> str:
        """The actors along the critical path, the one with most of it first."""
        shares = self._shares(lambda span: span.actor)
        return " + ".join(actor for actor, share in shares.items() if share >= 0.005)

    def _shares(self, key: Callable[[Span], str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for span in chain(self.timeline):
            found[key(span)] = found.get(key(span), 0.0) + span.us
        total = sum(found.values())
        largest = sorted(found.items(), key=lambda item: -item[1])
        return {name: us / total for name, us in largest if us > 0}

    def to_json(self) -> dict[str, Any]:
        made = self.made
        return {
            "config": self.name,
            "how": self.how,
            "costs": None
            if made.costs is None or made.times is None
            else {
                "name": made.costs.name,
                "basis": made.costs.file.basis,
                "rows": made.times.rows,
                "tokens": made.times.tokens,
                "notes": list(made.times.notes),
            },
            "steps": self.asked.step_count,
            "jitter": self.asked.jitter,
            "seed": self.asked.drawn_by,
            "period_us": self.period_us,
            "predicted_period_us": self.predicted_us,
            **({"modes": [each._asdict() for each in words]} if (words := self.words) else {}),
            **({"gains": [each._asdict() for each in gains]} if (gains := self.gains) else {}),
            "tokens_per_second": self.tokens_per_second,
            "tpot_us": self.tpot_us,
            "host_us": self.busy_us("host"),
            "device_us": self.busy_us("device"),
            "device_gap_us": self.device_gap_us,
            "overlap": self.overlap,
            "critical_path": self.critical_path,
        }
