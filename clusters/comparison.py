"""All layouts of a cluster under the same load, and which is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .file import Cluster
from .goal import Goal, Limit, best, broken
from .layout import Layout, LayoutConfig, Unfit, possible_layouts
from .load import jobs_of, routed
from .simulation import Outcomes, Simulator

NOTICE = "SIMULATED, not measured"


@dataclass(frozen=True)
class Comparison:
    """What each layout came to; those that do not fit, with the reason."""

    simulator: Simulator
    found: tuple[Outcomes, ...]
    refused: tuple[tuple[str, str], ...]
    goal: Goal
    limits: tuple[Limit, ...]
    requests: int

    @property
    def cluster(self) -> Cluster:
        return self.simulator.cluster

    @cached_property
    def best(self) -> Outcomes | None:
        return best(self.found, self.goal, self.limits)

    def to_json(self) -> dict[str, Any]:
        """The notice first: whoever reads a figure is to know that it is simulated."""
        simulator = self.simulator
        return {
            "notice": f"{NOTICE}: {self.cluster.origin}",
            "simulated": True,
            "cluster": self.cluster.name,
            "pipeline": self.cluster.config.pipeline,
            "costs": {"name": simulator.costs.name, "basis": simulator.costs.file.basis},
            "requests": self.requests,
            "goal": self.goal,
            "limits": {each.name: each.most_ms for each in self.limits},
            "best": None if self.best is None else str(self.best.layout),
            "layouts": [
                {"name": str(each.layout), "broken": broken(each, self.limits), **each.to_json()}
                for each in self.found
            ],
            "refused": [{"name": name, "why": why} for name, why in self.refused],
        }


def compare(
    cluster: Cluster,
    asked: Sequence[LayoutConfig] | None = None,
    *,
    goal: Goal = "throughput",
    limits: Sequence[Limit] = (),
    progress: Callable[[Layout, int], None] = lambda layout, ended: None,
) -> Comparison:
    """Simulate `asked`, else the layouts of the file, one after another.

    `progress` is told how many requests of a layout have ended. Raises `Unfit` where no layout
    fits, and as `Simulator.of` does.
    """
    simulator = Simulator.of(cluster)
    jobs = jobs_of(cluster)
    found, refused = [], []
    for each in asked or layouts_of(cluster):
        try:
            layout = Layout.of(each, cluster.config.model)
            _check_devices(layout, cluster)
            shares = routed([job.again() for job in jobs], layout.replicas, cluster.config.routing)
            found.append(simulator.run(layout, shares, lambda n, at=layout: progress(at, n)))  # type: ignore[misc]
        except Unfit as error:
            refused.append((str(each), error.message))
    if not found:
        raise Unfit("\n".join(f"{name}: {why}" for name, why in refused))
    return Comparison(simulator, tuple(found), tuple(refused), goal, tuple(limits), len(jobs))


def layouts_of(cluster: Cluster) -> list[LayoutConfig]:
    """Those that the file lists, or all that are possible. Raises `Unfit` for none."""
    config = cluster.config
    if config.layouts:
        return list(config.layouts)
    devices = config.devices * config.nodes
    if not (possible := list(possible_layouts(devices, config.model))):
        raise Unfit(f"no layout of {devices} devices fits the sizes of the model")
    return possible


def _check_devices(layout: Layout, cluster: Cluster) -> None:
    """Raises `Unfit` for a layout that needs more devices than there are."""
    config = cluster.config
    there = config.devices * config.nodes
    if layout.devices > there:
        raise Unfit(f"needs {layout.devices} devices; there are {there}")
    if layout.tensor > config.devices and layout.tensor % config.devices:
        raise Unfit(
            f"tensor {layout.tensor} spans nodes of {config.devices} devices unevenly: use a "
            "multiple of that"
        )
    if layout.tensor <= config.devices and config.devices % layout.tensor:
        raise Unfit(
            f"tensor {layout.tensor} does not divide a node of {config.devices} devices, so a "
            "group would lie on two nodes"
        )


def errors_of(outcomes: Outcomes) -> list[str]:
    """Why requests were refused, the most frequent reason first."""
    reasons = Counter(job.refused for job in outcomes.jobs if job.refused is not None)
    return [f"{count} × {reason}" for reason, count in reasons.most_common(3)]
