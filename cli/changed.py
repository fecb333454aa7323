"""What a file changes in the plan of the file that it extends, in a few words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.answers.difference import Difference, difference
from ..graph.errors import StepweaveError
from ..graph.node import Node
from ..graph.plan import Wait
from ..views.words import slots_text
from .planned import Planned, plan_of

if TYPE_CHECKING:
    from ..configs.costs import Costs


@dataclass(frozen=True)
class Changed:
    """The difference to the plan of the extended file, `name`."""

    name: str
    found: Difference

    def words(self) -> str:
        """What changed in nodes, waits, slots and speed; `graph diff` says the rest."""
        if self.found.identical:
            return "nothing: the plan is the same"
        parts = [*_nodes(self.found), *_waits(self.found), *_slots(self.found)]
        return "; ".join([*parts, *_numbers(self.found)])

    def to_json(self) -> dict[str, Any]:
        return {"extends": self.name, "words": self.words(), **self.found.to_json()}


def changed(planned: Planned, costs: Costs | None, rows: int | None) -> Changed | None:
    """Against the file that the config's file extends, as it stands; None if there is none.

    Settings count as changes. None also where the extended file alone has no plan.
    """
    extended = planned.loaded.extended
    if extended is None:
        return None
    try:
        before = plan_of(extended.load(), None, costs, rows).plan
    except StepweaveError:
        return None
    return Changed(extended.name, difference(before, planned.plan))


def _nodes(found: Difference) -> Iterator[str]:
    before, after = (
        {node.name: node for node in plan.graph.nodes} for plan in (found.before, found.after)
    )
    for what, names in (
        ("without", [name for name in before if name not in after]),
        ("new:", [name for name in after if name not in before]),
    ):
        if names:
            yield f"{what} {', '.join(names)}"
    both = [name for name in before if name in after]
    for name in both:
        yield from _moved(before[name], after[name])
    listed = [name for name in after if name in before]
    if listed != both:
        yield f"in another order: {', '.join(after)}"


def _moved(before: Node, after: Node) -> Iterator[str]:
    """Where a node runs and what it is, where that changed."""
    for what, was, now in (
        ("is of kind", before.kind, after.kind),
        ("runs on host thread", before.actor, after.actor),
        ("runs on stream", before.stream, after.stream),
    ):
        if was != now:
            yield f"{after.name} {what} {now}, not {was}"


def _waits(found: Difference) -> Iterator[str]:
    before, after = len(found.before.waits), len(found.after.waits)
    said = [f"− {_wait(wait)}" for wait in found.waits_removed]
    said += [f"+ {_wait(wait)}" for wait in found.waits_added]
    said += [f"~ {each.target} for {each.source}, other steps" for each in found.waits_moved]
    if said:
        yield f"{before} → {after} waits: {', '.join(said)}"
    else:
        yield f"{after} waits, as before"


def _wait(wait: Wait) -> str:
    return f"{wait.target} for {wait.source}"


def _slots(found: Difference) -> Iterator[str]:
    some = [f"{name} {slots_text(a)} → {slots_text(b)}" for name, (a, b) in found.slots.items()]
    if some:
        yield f"slots: {', '.join(some)}"


def _numbers(found: Difference) -> Iterator[str]:
    before, after = found.before, found.after
    for was, now, what in (
        (before.requirements, after.requirements, "requirements"),
        (before.step_us, after.step_us, "µs a step"),
    ):
        yield f"{was:,.6g} → {now:,.6g} {what}" if was != now else f"{now:,.6g} {what}, as before"
