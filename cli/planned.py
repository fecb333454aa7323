"""From a config's name to its compiled, verified plan, for every verb that needs one."""

from __future__ import annotations

from collections.abc import Mapping

from ..configs.abstract import AbstractGraph
from ..configs.errors import ConfigError, Mark, Problem
from ..configs.load import Loaded, load
from ..graph.compile import compile_plan
from ..graph.errors import GraphError, StepweaveError, UnsoundPlan, did_you_mean
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph
from ..graph.verify import verify


class Refused(StepweaveError):
    """The graph of a config was refused, or its plan; `mark` is the place in the file."""

    def __init__(self, error: GraphError | UnsoundPlan, mark: Mark) -> None:
        super().__init__(
            f"{mark}: {error.message}", code=error.code, line=mark.line, column=mark.column
        )
        self.error = error
        self.mark = mark

    def to_json(self) -> dict[str, object]:
        place = {"file": self.mark.file, "line": self.mark.line, "column": self.mark.column}
        return {**self.error.to_json(), **place}


def planned(name: str, overrides: Mapping[str, str] | None = None) -> Plan:
    """Load, compile, prove. Raises `ConfigError`, or `Refused` with the place."""
    loaded = load(name, overrides)
    try:
        plan = _compile(loaded)
        verify(plan)
    except (GraphError, UnsoundPlan) as error:
        raise Refused(error, loaded.mark(error.line)) from error
    return plan


def _compile(loaded: Loaded) -> Plan:
    config = loaded.config
    if isinstance(config, AbstractGraph):
        return compile_plan(config.step_graph(name=loaded.name))
    from ..serving.pipeline import step_graph

    graph = step_graph(config)
    _refuse_unknown_pins(loaded, graph)
    return compile_plan(graph, costs=config.costs, slots=config.slots, order=config.order)


def _refuse_unknown_pins(loaded: Loaded, graph: StepGraph) -> None:
    """`slots` and `costs` name values and ops of a graph that only exists now."""
    problems = [
        Problem(
            part.key or part.mark,
            f"unknown {what} {name!r}{did_you_mean(name, known)}",
            "SW-UNKNOWN-NAME",
        )
        for section, what, known in (
            ("slots", "value", graph.values.keys()),
            ("costs", "op", graph.vertices.keys()),
        )
        for name in getattr(loaded.config, section)
        if name not in known
        for part in [loaded.source.at((section, name))]
    ]
    if problems:
        raise ConfigError(*problems)
