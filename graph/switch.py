"""What a running engine does to go from one plan to another between two steps.

Steps up to one are run by the plan *before*, all others by the plan *after*. Steps are counted from
the first of the plan after: it is step 0, and the last of the plan before is step −1. Each value
stays where it was written: a reader of the plan after finds versions of earlier steps in the slots
of the plan before. States are the same objects throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .plan import Lease, Plan


class Instance(NamedTuple):
    """One op of one step of the plan before (part 0) or after (part 1) a switch."""

    part: int
    op: str
    step: int

    def __str__(self) -> str:
        return f"{self.op} of step {f's{self.step:+d}' if self.step else 's'}"


@dataclass(frozen=True, slots=True)
class Crossing:
    """A requirement between the two plans: `source` must be done before `target` starts.

    `met_at` is where that can be waited for, the launch of a device op that must follow a host op.
    `witness` is the chain of instances that orders the two.
    """

    source: Instance
    target: Instance
    hazard: Literal["RAW", "WAR", "WAW", "LAUNCH", "BOUND"]
    value: str
    met_at: Instance
    witness: tuple[Instance, ...] = ()

    def __str__(self) -> str:
        what = f"{self.hazard} {self.value}".strip()
        return f"{what}: {self.source} before {self.target}"


@dataclass(frozen=True, slots=True)
class WaitOnce:
    """`target` starts only after `source` is done; no other step waits for it.

    `protects`: the requirements that lose their order without it.
    """

    source: Instance
    target: Instance
    protects: tuple[Crossing, ...] = ()


@dataclass(frozen=True)
class Switch:
    """How every actor goes from the plan `before` to the plan `after`, and why that is safe.

    Iterations are counted as steps are: in iteration t an actor runs an op with offset o for step
    t − o. An actor runs the plan before alone up to iteration `leaves`, then its part of
    `programs`, then the plan after alone from iteration `enters`. Instances of steps that their
    plan does not run are skipped, but keep their waits, launches and records.

    In the serial program the iterations of the plan after are `delay` later than its offsets say.
    From step `over` on, every op comes after all that the plan before has run, and after all that
    read its versions: from then on its slots may be written by others.
    """

    before: Plan
    after: Plan
    delay: int
    leaves: int
    enters: int
    programs: Mapping[str, tuple[Instance, ...]]
    waits: tuple[WaitOnce, ...]
    crossings: tuple[Crossing, ...]
    leases: tuple[Lease, ...]  # of keys that pass from users in the one plan to those in the other
    over: int
    costs_us: float  # by how much steps of the plan after are later than in steady state
    drained_us: float  # the same if nothing of it started before the plan before has ended

    @property
    def plans(self) -> tuple[Plan, Plan]:
        """The two plans, by part."""
        return self.before, self.after

    @property
    def lead(self) -> int:
        """How many steps before a switch its step must be known: each actor is then in time.

        An actor in iteration t has begun step t − 1 − o at least, where o is its least offset.
        """
        least = [min(offset for _, offset in ops) for ops in self.before.actors.values() if ops]
        return max(1, 1 + max(least, default=0) - self.leaves)
