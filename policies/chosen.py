"""The policies of one engine: one for each decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from .acceptance import Acceptance, Coupled
from .admission import Admission, Eager
from .preemption import LastCome, Preemption
from .registry import DECISIONS, check_policy
from .resumption import KeptOnHost, Resumption
from .scheduling import DecodesFirst, Scheduling
from .stopping import AsAsked, Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """A policy for each decision; the defaults are those of a pipeline file that names none.

    Raises `PolicyError` for an object that does not do what its decision asks.
    """

    admission: Admission = field(default_factory=Eager)
    scheduling: Scheduling = field(default_factory=DecodesFirst)
    preemption: Preemption = field(default_factory=LastCome)
    resumption: Resumption = field(default_factory=KeptOnHost)
    acceptance: Acceptance = field(default_factory=Coupled)
    stopping: Stopping = field(default_factory=AsAsked)

    def __post_init__(self) -> None:
        for decision in DECISIONS:
            check_policy(decision, getattr(self, decision))
