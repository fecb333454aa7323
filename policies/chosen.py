"""The policies of one engine: one for each decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from .acceptance import Acceptance, Coupled
from .admission import Admission, Eager
from .drafting import Drafting, Full
from .errors import PolicyError
from .preemption import LastCome, Preemption
from .registry import DECISIONS, called, check_policy
from .resumption import KeptOnHost, Resumption
from .scheduling import DecodesFirst, Scheduling
from .stopping import AsAsked, Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """A policy for each decision; the defaults are those of a pipeline file that names none.

    Raises `PolicyError` for an object that does not do what its decision asks, and for an
    acceptance rule whose tokens would depend on who runs, by the drafts that a row is offered.
    """

    admission: Admission = field(default_factory=Eager)
    scheduling: Scheduling = field(default_factory=DecodesFirst)
    preemption: Preemption = field(default_factory=LastCome)
    resumption: Resumption = field(default_factory=KeptOnHost)
    drafting: Drafting = field(default_factory=Full)
    acceptance: Acceptance = field(default_factory=Coupled)
    stopping: Stopping = field(default_factory=AsAsked)

    def __post_init__(self) -> None:
        for decision in DECISIONS:
            check_policy(decision, getattr(self, decision))
        if (wrong := clash(self.drafting, self.acceptance)) is not None:
            raise PolicyError(f"{called('drafting', self.drafting)}: {wrong}")


def clash(drafting: Drafting, acceptance: Acceptance) -> str | None:
    """Why these two do not go together, if they do not."""
    if drafting.own or acceptance.exact:
        return None
    return (
        "it offers a row drafts by what other rows do, and with this acceptance rule tokens depend "
        "on how many there are; use acceptance 'coupled', or drafting 'by_acceptance' or 'full'"
    )
