"""What `graph whatif` changes, and how the changed config is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from ..configs.abstract import AbstractGraph
from ..configs.errors import ConfigError, Mark
from ..configs.yaml_source import Located
from ..graph.answers.between import ops_named
from ..graph.answers.whatif import altered, scaled, with_costs, without_classes
from ..graph.errors import GraphError, did_you_mean
from ..graph.plan import Plan
from ..graph.planner.compile import compile_plan
from ..graph.rates import costs_by_firing
from ..graph.step_graph import StepGraph
from ..graph.verifier.verify import verify
from .planned import Planned, costs_named, planned_with
from .settings import overrides, pairs, told_at

if TYPE_CHECKING:
    from .graph import WhatIfOptions

T = TypeVar("T")


@dataclass(frozen=True)
class Change:
    """What is different from the plan as configured."""

    scale: Mapping[str, float] = field(default_factory=dict)  # by node or op
    cost: Mapping[str, float] = field(default_factory=dict)  # by op
    slots: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str | Located] = field(default_factory=dict)
    rows: int | None = None  # at which the costs file is read, if not as given
    without: frozenset[str] = frozenset()  # extensions

    @staticmethod
    def of(asked: WhatIfOptions) -> Change:
        """What the command line says. Raises `ConfigError`."""

        return Change(
            _read("--scale", asked.scale, number),
            _read("--cost", asked.cost, number),
            _read("--slots", asked.slots, whole),
            overrides(asked.settings),
            without=frozenset(asked.without or ()),
        )

    def __bool__(self) -> bool:
        changed = (self.scale, self.cost, self.slots, self.settings, self.rows, self.without)
        return any(changed)

    def with_(self, key: str, value: str) -> Change:
        """The same and one value of a sweep.

        `scale.NAME`, `cost.OP`, `slots.VALUE`, `rows`, or a setting.
        """
        kind, _, name = key.partition(".")
        where = Mark(f"--sweep {key}={value}")
        if kind == "scale":
            return replace(self, scale={**self.scale, name: number(where, value)})
        if kind in ("cost", "costs"):
            return replace(self, cost={**self.cost, name: number(where, value)})
        if kind == "slots":
            return replace(self, slots={**self.slots, name: whole(where, value)})
        if key == "rows":
            return replace(self, rows=whole(where, value))
        return replace(self, settings={**self.settings, **told_at("--sweep", {key: value})})


PLAIN = Change()


def configured(asked: WhatIfOptions, change: Change = PLAIN) -> Planned:
    """The plan with the settings and rows of the change, but not yet its costs and slots."""
    rows = change.rows or asked.rows
    rows_of = "--rows" if change.rows is None else f"--sweep rows={change.rows}"
    costs = costs_named(asked.costs, rows, rows_of)
    return planned_with(asked.config, change.settings, costs, rows)


def changed(asked: WhatIfOptions, plain: Planned, change: Change) -> Plan:
    """The plan after the change: derived anew, or with `--keep-plan` the same one, timed."""
    if asked.keep_plan and (change.slots or change.settings or change.rows or change.without):
        raise ConfigError.at(
            Mark("--keep-plan"), "keeps the plan: only costs can be changed with it"
        )
    found = configured(asked, change) if change.settings or change.rows else plain
    durations = _durations(asked.config, found.plan, change)
    if asked.keep_plan:
        return with_costs(found.plan, durations)
    _know_values(asked.config, found.plan, change.slots)
    if durations == found.plan.costs and not change.slots and not change.without:
        return found.plan
    graph = found.plan.graph.declared or found.plan.graph
    if "keys" in change.without:
        graph = without_classes(graph)
    return _compiled(found, graph, durations, change.slots)


def _read(option: str, texts: Sequence[str] | None, kind: Callable[[Mark, str], T]) -> dict[str, T]:
    found = pairs(option, texts)
    return {key: kind(Mark(f"{option} {key}={text}"), text) for key, text in found.items()}


def number(where: Mark, text: str) -> float:
    """A duration or factor: finite, and not negative."""
    if (found := _from_zero(text)) is None:
        raise ConfigError.at(where, f"{text!r} is not a number from 0 on")
    return found


def whole(where: Mark, text: str) -> int:
    """A number of slots or rows."""
    found = _from_zero(text)
    if found is None or found != int(found) or found < 1:
        raise ConfigError.at(where, f"{text!r} is not a whole number from 1 on")
    return int(found)


def _from_zero(text: str) -> float | None:
    """The number that a text is; None: it is none, or negative, or too large."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < 1e12 else None


def _durations(config: str, plan: Plan, change: Change) -> dict[str, float]:
    cost = costs_by_firing(plan.graph, change.cost)
    for op in cost:
        if op not in plan.graph.vertices:
            near = did_you_mean(op, plan.graph.vertices)
            raise ConfigError.at(Mark(config), f"there is no op {op!r}{near}", "SW-UNKNOWN-NAME")
    factors: dict[str, float] = {}
    for name, factor in change.scale.items():
        try:
            ops = ops_named(plan, name)
        except GraphError as error:
            raise ConfigError.at(Mark(config), error.message, error.code) from error
        for op in ops:
            factors[op] = factors.get(op, 1.0) * factor
    return scaled({**plan.costs, **cost}, factors)


def _know_values(config: str, plan: Plan, slots: Mapping[str, int]) -> None:
    known = plan.declared_slots
    slotted = [name for name, count in known.items() if count is not None]
    for name in slots:
        if name not in slotted:
            said = "is fresh and has no slots" if name in known else "does not exist"
            near = did_you_mean(name, slotted)
            raise ConfigError.at(Mark(config), f"value {name!r} {said}{near}", "SW-UNKNOWN-NAME")


def _compiled(
    found: Planned, graph: StepGraph, costs: Mapping[str, float], slots: Mapping[str, int]
) -> Plan:
    """The plan that the compiler derives for a graph with these costs and slots."""
    config = found.loaded.config
    said = found.plan.costs_from if costs == found.plan.costs else altered(found.plan)
    if isinstance(config, AbstractGraph):
        plan = compile_plan(graph, costs=costs, slots=slots, costs_from=said)
    else:
        from ..serving.pipeline import placed

        pins = {**config.slots, **slots}
        plan = placed(config, graph, costs, slots=pins, costs_from=said)
    verify(plan)
    return plan
