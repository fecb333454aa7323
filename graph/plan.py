"""The plan: the compiled, immutable result that executors run and drawings show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from .step_graph import StepGraph

Hazard = Literal["RAW", "WAR", "WAW"]
By = Literal["order", "launch", "wait", "path"]
HINTS = "hints, not measured"  # what nodes declare, and a default where they declare nothing
Placed = tuple[str, int]  # an op and the offset at which its actor runs it


@dataclass(frozen=True, slots=True)
class Protected:
    """A requirement that would be broken if its wait were removed."""

    hazard: str
    value: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Wait:
    """`target` of step i + distance starts only after `source` of step i is done.

    The target's actor waits for the event that the source's actor records after `source`:
    a stream where the target is a device op, else a host thread.

    With `modes` it takes place only where the mode of step i + `told` is one of them: both actors
    know that mode by then. A step that is not in a run has no mode, and all its waits take place.
    """

    source: str
    target: str
    distance: int
    protects: tuple[Protected, ...] = ()
    modes: tuple[str, ...] | None = None
    told: int = 0

    def takes_place(self, source_step: int, mode_of: Callable[[int], str | None]) -> bool:
        """Whether that of a step of the source does; `mode_of`: None for a step without a mode."""
        if self.modes is None:
            return True
        mode = mode_of(source_step + self.told)
        return mode is None or mode in self.modes


@dataclass(frozen=True, slots=True)
class Edge:
    """One requirement, and how the plan meets it.

    `distance` is the most that a path from source to target may have; `witness` is a path of
    (op, total distance so far) that starts with (source, 0) and ends with (target, ≤ distance).
    A requirement of a host op on a device op is met at that op's launch, so its witness goes
    through the launch op. `event` names the op whose recorded event realizes it, if one does.
    """

    source: str
    target: str
    value: str
    carry: int
    distance: int
    hazard: str
    from_stream: str
    to_stream: str
    by: By
    event: str | None
    witness: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """When a key of a keyed state may change hands.

    A key that users of the class `source` had in step s at last may be had by those of the class
    `target` from step s + `steps` on.
    """

    state: str
    source: str
    target: str
    steps: int


@dataclass(frozen=True)
class Plan:
    """Actor orders, waits, slots and proof of one step graph."""

    graph: StepGraph
    actors: Mapping[
        str, tuple[Placed, ...]
    ]  # in iteration t, the actor runs op for step t − offset
    waits: tuple[Wait, ...]
    edges: tuple[Edge, ...]  # RAW, WAR, WAW: for each pair of conflicting accesses; LEASE, BOUND
    launch_order: tuple[Edge, ...]  # what streams need of the host order (hazard "LAUNCH")
    slots: Mapping[str, int | None]  # None where the value is fresh
    period_us: float
    critical_cycle: tuple[Placed, ...]  # (op, distance to the next)
    notes: tuple[str, ...] = ()  # e.g. what a guarding wait costs, or that a heuristic was used
    costs: Mapping[str, float] = field(default_factory=dict)  # op -> µs used for the period
    costs_from: str = HINTS  # where the costs come from, for people; no part of the digest
    leases: tuple[Lease, ...] = ()  # by keyed state, for each two classes whose accesses conflict

    @property
    def records(self) -> frozenset[str]:
        """Ops whose event is recorded: exactly those that another op waits for."""
        return frozenset(wait.source for wait in self.waits)

    @property
    def always(self) -> Plan:
        """The same with only those waits that take place in every mode."""
        if all(wait.modes is None for wait in self.waits):
            return self
        return replace(self, waits=tuple(wait for wait in self.waits if wait.modes is None))

    @property
    def in_every_mode(self) -> Plan:
        """The same with all waits in every mode."""
        if self.always is self:
            return self
        return replace(self, waits=tuple(replace(wait, modes=None, told=0) for wait in self.waits))

    @property
    def has_classes(self) -> bool:
        """Whether keys of some state pass between classes of users."""
        return any(lease.source != lease.target for lease in self.leases)

    @property
    def requirements(self) -> int:
        return len(self.edges)

    @property
    def step_us(self) -> float:
        """The period in µs a step: where nodes have rates, `period_us` is that of a cycle."""
        return self.period_us / self.graph.cycle

    @property
    def declared_slots(self) -> Mapping[str, int | None]:
        """Slots by declared value: those that firings share are counted once."""
        values = self.graph.values
        turns = {name: value.turn for name, value in values.items() if value.turn is not None}
        return {turns[n].value if n in turns else n: k for n, k in self.slots.items()}

    def to_json(self) -> dict[str, Any]:
        """The canonical form, without the graph's code objects; the digest is of this.

        Leases are a part of it where users have classes; else they follow from the rest.
        """
        rates = {} if self.graph.declared is None else {"cycle": self.graph.cycle}
        return {
            **rates,
            "actors": {name: [list(placed) for placed in ops] for name, ops in self.actors.items()},
            "waits": [
                {
                    "from": wait.source,
                    "to": wait.target,
                    "distance": wait.distance,
                    **(
                        {} if wait.modes is None else {"modes": list(wait.modes), "told": wait.told}
                    ),
                    "protects": [
                        {
                            "hazard": p.hazard,
                            "value": p.value,
                            "before": p.before,
                            "after": p.after,
                        }
                        for p in wait.protects
                    ],
                }
                for wait in self.waits
            ],
            "edges": [_edge_json(edge) for edge in self.edges],
            "launch_order": [_edge_json(edge) for edge in self.launch_order],
            "slots": dict(self.slots),
            "requirements": self.requirements,
            "period_us": self.period_us,
            "critical_cycle": [list(placed) for placed in self.critical_cycle],
            "notes": list(self.notes),
            **({"leases": [asdict(each) for each in self.leases]} if self.has_classes else {}),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal plans have equal digests on every machine."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), default=int)
        return hashlib.sha256(text.encode()).hexdigest()


def _edge_json(edge: Edge) -> dict[str, Any]:
    return {
        "from": edge.source,
        "to": edge.target,
        "value": edge.value,
        "carry": edge.carry,
        "distance": edge.distance,
        "hazard": edge.hazard,
        "from_stream": edge.from_stream,
        "to_stream": edge.to_stream,
        "by": edge.by,
        "event": edge.event,
        "witness": [list(placed) for placed in edge.witness],
    }
