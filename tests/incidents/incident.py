"""The shape of an incident: a bug that a real engine had, its safe form, and its buggy one.

The safe form is a graph from which the right wait, slot or type is derived, or a run of the engine
itself. The buggy form is a plan as the hand-written engine had it, which the verifier must refuse
and in which brute force must find a wrong result; or something that the engine, the compiler or
the type checker refuses when it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stepweave.executors.errors import NodeFailure
from stepweave.executors.report import RunReport
from stepweave.executors.run import run
from stepweave.graph.errors import StepweaveError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.checking.mode import Strict


@dataclass(frozen=True)
class Derived:
    """A graph, and what the compiler must make of it.

    `waits` are all waits of the plan, as `a → b +1`; `slots` the counts that matter here; `orders`
    requirements that must be stated, as `WAR staging: a → b +2`.
    """

    graph: Callable[[], StepGraph]
    waits: tuple[str, ...]
    slots: Mapping[str, int] = field(default_factory=dict)
    orders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mistake:
    """What the hand-written engine had instead of the derived plan: refused, for it races."""

    what: str
    plan: Callable[[Plan], Plan]
    code: str
    words: tuple[str, ...]


class Told(NamedTuple):
    """A refusal that is not an exception: who refuses, and what is said."""

    by: str
    text: str


@dataclass(frozen=True)
class Refusal:
    """Something that is refused when it is tried; `attempt` raises, or returns what was told."""

    what: str
    attempt: Callable[[], Told | None]
    by: str  # the error's code, or its type where it has none, or who told
    words: tuple[str, ...]


@dataclass(frozen=True)
class Incident:
    """One row of the table. `encoded_as_graph`: the engine has no such feature, the graph has.

    `about`: the kinds of node that have the mistake, or have it in place of one of the engine's.
    """

    id: str
    where: str
    happened: str
    instead: str
    derived: Derived | None = None
    mistakes: tuple[Mistake, ...] = ()
    safe: Callable[[], None] | None = None
    refusals: tuple[Refusal, ...] = ()
    encoded_as_graph: bool = False
    about: tuple[str, ...] = ()


def refused(attempt: Callable[[], Told | None]) -> Told:
    """What comes of trying something that must not work."""
    try:
        told = attempt()
    except StepweaveError as error:
        return Told(error.code, error.message)
    except Exception as error:
        return Told(type(error).__name__, str(error))
    assert told is not None, "it was not refused"
    return told


def written(plan: Plan) -> tuple[str, ...]:
    """The waits of a plan as text."""
    return tuple(f"{wait.source} → {wait.target} {wait.distance:+d}" for wait in plan.waits)


# --- ways to break a plan -------------------------------------------------------------------


def without_wait(source: str, target: str) -> Callable[[Plan], Plan]:
    """Nobody wrote this wait."""

    def change(plan: Plan) -> Plan:
        kept = tuple(w for w in plan.waits if (w.source, w.target) != (source, target))
        assert len(kept) == len(plan.waits) - 1, "the plan has that wait"
        return replace(plan, waits=kept)

    return change


def loosened_wait(source: str, target: str) -> Callable[[Plan], Plan]:
    """The wait is there, but for the event of one step earlier."""

    def change(plan: Plan) -> Plan:
        here = [(w.source, w.target) == (source, target) for w in plan.waits]
        assert sum(here) == 1, "the plan has that wait"
        waits = (
            replace(wait, distance=wait.distance + hit)
            for wait, hit in zip(plan.waits, here, strict=True)
        )
        return replace(plan, waits=tuple(waits))

    return change


def with_slots(**slots: int) -> Callable[[Plan], Plan]:
    """As many buffers as somebody thought would do."""
    return lambda plan: replace(plan, slots={**plan.slots, **slots})


def planned_for(other: Callable[[], StepGraph]) -> Callable[[Plan], Plan]:
    """The plan of somebody who did not know of an access; judged by the true accesses."""
    return lambda plan: replace(compile_plan(other()), graph=plan.graph)


def exchanged(actor: str, first: str, second: str) -> Callable[[Plan], Plan]:
    """Two ops of one actor in the other order."""

    def change(plan: Plan) -> Plan:
        other = {first: second, second: first}
        offsets = dict(plan.actors[actor])
        program = tuple((other.get(op, op), offsets[other.get(op, op)]) for op in offsets)
        return replace(plan, actors={**plan.actors, actor: program})

    return change


def moved(actor: str, op: str, before: str) -> Callable[[Plan], Plan]:
    """An op of an actor, run earlier than it should."""

    def change(plan: Plan) -> Plan:
        program = [placed for placed in plan.actors[actor] if placed[0] != op]
        at = [name for name, _ in program].index(before)
        program.insert(at, (op, dict(plan.actors[actor])[op]))
        return replace(plan, actors={**plan.actors, actor: tuple(program)})

    return change


def strictly(graph: StepGraph) -> RunReport:
    """Run a graph in checking mode; the cause of a node's failure is raised itself."""
    try:
        return run(compile_plan(graph), executor=Strict(), steps=2)
    except NodeFailure as failure:
        raise failure.__cause__ or failure from None
