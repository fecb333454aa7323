"""The mutation campaign: every mutant of a plan, before two oracles that share nothing.

The verifier derives what must be ordered and looks for paths; the explorer runs the mutant and
looks at what its ops see. A mutant is *killed* where both object. Where neither does, it orders all
that must be ordered by other paths: it is *equivalent* once there is a witness for every true
requirement, which the verifier checks. Where one of them objects alone, one of them is wrong, or a
mutant survives: that is a `Disagreement`, and the campaign has failed.

Accesses that a mutant drops or declares in another phase are seen in a third way too: checking
mode sees ops do what they did not declare. That needs no plan to be wrong, so it sees equivalent
ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...graph import arguments
from ...graph.plan import Plan
from ...graph.step_graph import StepGraph
from ...graph.verifier.verify import violations
from .contracts import breaks_contract
from .explorer import explore, refuse_ranks
from .mutants import CLASSES, MutantClass, mutants, races, reproved, what_runs


@dataclass(frozen=True)
class Disagreement:
    """A mutant that only one of the oracles objects to, with what each of them says."""

    kind: MutantClass
    what: str
    verifier: str
    explorer: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}\n  verifier  {self.verifier}\n  explorer  {self.explorer}"

    def to_json(self) -> dict[str, str]:
        return {
            "class": self.kind,
            "mutant": self.what,
            "verifier": self.verifier,
            "explorer": self.explorer,
        }


@dataclass
class Tally:
    """Mutants of one class.

    `refused`: false declarations that the planner makes no plan from: no mutants to kill.
    `undeclared`: declarations in which an op lacks an access; `caught`: those of them that checking
    mode objects to.
    """

    killed: int = 0
    equivalent: int = 0
    survived: int = 0
    refused: int = 0
    undeclared: int = 0
    caught: int = 0

    @property
    def total(self) -> int:
        """Mutants that must be killed: all but the equivalent ones."""
        return self.killed + self.survived

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(
                mine + its
                for mine, its in zip(self.counts.values(), other.counts.values(), strict=True)
            )
        )

    @property
    def counts(self) -> Mapping[str, int]:
        return dict(vars(self))

    def to_json(self) -> dict[str, int]:
        return {"total": self.total, **self.counts}


@dataclass
class Campaign:
    """The outcome of all mutants of one plan."""

    tallies: dict[MutantClass, Tally] = field(
        default_factory=lambda: {kind: Tally() for kind in CLASSES}
    )
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.disagreements

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "classes": {kind: tally.to_json() for kind, tally in self.tallies.items()},
            "disagreements": [each.to_json() for each in self.disagreements],
        }


def campaign(
    plan: Plan,
    *,
    seeds: Iterable[int] = range(4),
    progress: Callable[[int], None] = lambda done: None,
) -> Campaign:
    """Judge every mutant of a plan.

    `seeds` are those of the explorer's random schedules, after its directed ones. `progress` is
    told how many mutants are done. Raises `GraphError` if `plan` is not a plan, or of ranks.
    """
    arguments.a("campaign", "plan", plan, Plan, arguments.A_PLAN)
    refuse_ranks("campaign", plan)
    tried = list(seeds)
    found = Campaign()
    judged: dict[tuple[object, ...], tuple[str, str]] = {}
    checked: StepGraph | None = None
    for number, mutant in enumerate(mutants(plan), start=1):
        tally = found.tallies[mutant.kind]
        lacks_access = mutant.kind in ("access", "phase") and mutant.declared is not None
        if lacks_access and mutant.declared is not checked:  # two plans may come from one of them
            checked = mutant.declared
            tally.undeclared += 1
            tally.caught += breaks_contract(mutant)
        if mutant.plan is None:
            tally.refused += 1
        else:
            key = what_runs(mutant.plan)
            if key not in judged:
                judged[key] = (by_verifier(mutant.plan), by_explorer(mutant.plan, tried))
            verifier, explorer = judged[key]
            if verifier and explorer:
                tally.killed += 1
            elif not verifier and not explorer:
                tally.equivalent += 1
            else:
                tally.survived += 1
                nothing = "no objection"
                found.disagreements.append(
                    Disagreement(mutant.kind, mutant.what, verifier or nothing, explorer or nothing)
                )
        progress(number)
    return found


def by_verifier(plan: Plan) -> str:
    """The verifier's first objection to a plan; empty if it proves the plan sound.

    A plan against which it has nothing gets a witness for every requirement, and these it checks.
    """
    found = races(plan) or violations(reproved(plan))
    return str(found[0]) if found else ""


def by_explorer(plan: Plan, seeds: Iterable[int]) -> str:
    """The explorer's objection to a plan; empty if it has none."""
    failure = explore(plan, seeds=seeds, shrink=False).failure
    return "" if failure is None else str(failure)
