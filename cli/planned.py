"""From a config's name to its compiled, verified plan, for every verb that needs one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..configs.abstract import AbstractGraph
from ..configs.errors import ConfigError, Mark, Problem
from ..configs.load import Loaded, load
from ..configs.shipped_costs import shipped_costs
from ..graph.errors import GraphError, StepweaveError, UnsoundPlan, did_you_mean
from ..graph.plan import HINTS, Plan
from ..graph.planner.compile import compile_plan
from ..graph.ranks import declared_name
from ..graph.step_graph import StepGraph
from ..graph.verifier.verify import verify

if TYPE_CHECKING:
    from ..configs.costs import Costs, OpTimes
    from ..configs.schema import PipelineConfig


class Refused(StepweaveError):
    """The graph of a config was refused, or its plan; `mark` is the place in the file."""

    def __init__(self, error: StepweaveError, mark: Mark) -> None:
        super().__init__(
            f"{mark}: {error.message}", code=error.code, line=mark.line, column=mark.column
        )
        self.error = error
        self.mark = mark

    def to_json(self) -> dict[str, object]:
        place = {"file": self.mark.file, "line": self.mark.line, "column": self.mark.column}
        return {**self.error.to_json(), **place}


@dataclass(frozen=True)
class Planned:
    """A plan, the config it came from, and the costs file it was made with, if any."""

    plan: Plan
    loaded: Loaded
    costs: Costs | None
    times: OpTimes | None  # of `costs`, at the batch size of the plan


def planned(
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    costs: str | None = None,
    rows: int | None = None,
) -> Plan:
    """Load, compile, prove. Raises `ConfigError`, or `Refused` with the place.

    `costs` is a costs file or shipped profile, read at `rows` rows: it goes before the hints of
    the config, but not before what `overrides` say of a cost. The plan's notes name it.
    """
    return planned_with(name, overrides, costs_named(costs, rows), rows).plan


def costs_named(name: str | None, rows: int | None, rows_of: str = "--rows") -> Costs | None:
    """What `--costs` asks for. Raises `ConfigError`. `rows_of`: the option that gives the rows."""
    if name is None and rows is not None:
        said = "is the batch size at which --costs is read: give --costs as well"
        raise ConfigError.at(Mark(rows_of), said)
    if name is None:
        return None
    from ..configs.costs import load_costs

    return load_costs(name)


def planned_with(
    name: str, overrides: Mapping[str, Any] | None, costs: Costs | None, rows: int | None
) -> Planned:
    """The same, of a costs file that is loaded already; and what it was made of."""
    return plan_of(load(name, overrides), overrides, costs, rows)


def runnable(name: str, overrides: Mapping[str, Any], option: str = "--set") -> PipelineConfig:
    """The config of something that can run. `option`: by which `overrides` were given.

    Its plan is made and proved as well, though the engine makes its own: what cannot run is refused
    before a model is loaded, or a library that could. Raises `ConfigError` or `Refused`.
    """
    loaded = load(name, overrides, option=option)
    if isinstance(loaded.config, AbstractGraph):
        raise ConfigError.at(
            Mark(name), "is an abstract graph, with no code to run: use `check` or `graph show`"
        )
    plan_of(loaded, overrides, None, None)
    return loaded.config


def plan_of(
    loaded: Loaded, overrides: Mapping[str, Any] | None, costs: Costs | None, rows: int | None
) -> Planned:
    """The plan of a config that is loaded already. Raises `Refused` where there is none."""
    try:
        graph = step_graph_of(loaded)
        times = costs.of(graph, rows=rows, window=window_of(loaded.config)) if costs else None
        plan = _compile(loaded, graph, times, overrides or {})
        if costs is not None and times is not None:
            read = f"costs: {costs.label}; at {times.rows} rows, {times.tokens} query tokens"
            said = (read, *(f"costs: {note}" for note in times.notes))
            plan = replace(plan, notes=(*plan.notes, *said), costs_from=_costs_from(costs, times))
        elif plan.costs_from == HINTS and (advice := _measured_costs(loaded)):
            plan = replace(plan, notes=(*plan.notes, advice))
        verify(plan)
    except (GraphError, UnsoundPlan) as error:
        raise Refused(error, loaded.mark(error.line)) from error
    return Planned(plan, loaded, costs, times)


def _measured_costs(loaded: Loaded) -> str | None:
    """What to add for measured durations, where a shipped costs file is named like the model."""
    config = loaded.config
    if isinstance(config, AbstractGraph) or config.model.name not in shipped_costs():
        return None
    return f"--costs {config.model.name} gives durations that were measured with this model"


def _costs_from(costs: Costs, times: OpTimes) -> str:
    rows = f"{costs.origin}, {times.rows} row{'s' * (times.rows != 1)} a step"
    return rows if times.complete else f"{rows}; ops that it lacks: {HINTS}"


def step_graph_of(loaded: Loaded) -> StepGraph:
    """The graph of a config, not compiled yet. Raises `ConfigError` or `GraphError`."""
    config = loaded.config
    if isinstance(config, AbstractGraph):
        return config.step_graph(name=loaded.name)
    from ..serving.pipeline import step_graph

    graph = step_graph(config)
    _refuse_unknown_pins(loaded, graph)
    return replace(graph, name=loaded.name)


def window_of(config: PipelineConfig | AbstractGraph) -> int:
    """Query tokens of a row in a decode step."""
    if isinstance(config, AbstractGraph) or config.drafter is None:
        return 1
    return 1 + config.drafter.tokens


def _compile(
    loaded: Loaded, graph: StepGraph, times: OpTimes | None, overrides: Mapping[str, Any]
) -> Plan:
    config = loaded.config
    if times is not None:
        graph = times.on(graph)
    found = dict(times.costs) if times is not None else {}
    if isinstance(config, AbstractGraph):
        return compile_plan(graph, costs=found)
    said = {key.removeprefix("costs.") for key in overrides if key.startswith("costs.")}
    first = {op: us for op, us in config.costs.items() if "costs" in overrides or op in said}
    from ..serving.pipeline import placed

    return placed(config, graph, {**config.costs, **found, **first})


def _refuse_unknown_pins(loaded: Loaded, graph: StepGraph) -> None:
    """`slots` and `costs` name values and ops of a graph that only exists now."""
    problems = [
        Problem(
            part.key or part.mark,
            f"unknown {what} {name!r}{did_you_mean(name, known)}",
            "SW-UNKNOWN-NAME",
        )
        for section, what, known in (
            ("slots", "value", {*graph.values, *(declared_name(graph, n) for n in graph.values)}),
            ("costs", "op", {*graph.vertices, *(declared_name(graph, n) for n in graph.vertices)}),
        )
        for name in getattr(loaded.config, section)
        if name not in known
        for part in [loaded.source.at((section, name))]
    ]
    if problems:
        raise ConfigError(*problems)
