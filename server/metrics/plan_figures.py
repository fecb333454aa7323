"""What the last steps say of the plan: its period, what is hidden, and what is waited for.

They are those of `stepweave trace`, of the last steps in a row that had something to do. Without
such steps, as after minutes without a request, there are none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from ..insight import Seen
from .figures import Figure, Labelled


def _idle(seen: Seen) -> Iterator[Labelled]:
    for each in seen.trace.analysis.causes:
        yield (each.actor, each.op, each.by, each.held, str(each.distance)), each.us / 1e6


def _waits(seen: Seen) -> Iterator[Labelled]:
    """Every wait of the plan, those that took no time too."""
    for wait, us in seen.trace.waited_us().items():
        yield (wait.target, wait.source, str(wait.distance)), us / 1e6


PLAN: tuple[Figure[Seen], ...] = (
    Figure(
        "stepweave:period_measured_seconds",
        "gauge",
        "Time per step: the median of the last steps.",
        lambda seen: seen.trace.run.period_us / 1e6,
    ),
    Figure(
        "stepweave:period_predicted_seconds",
        "gauge",
        "Time per step as the plan predicts it, each op at its median cost in the last steps.",
        lambda seen: seen.trace.predicted_us / 1e6,
    ),
    Figure(
        "stepweave:host_hidden_ratio",
        "gauge",
        "The share of the hosts' work during which a device was busy; 1 is all.",
        lambda seen: seen.trace.analysis.overlap.hidden,
    ),
    Figure(
        "stepweave:device_overlapped_ratio",
        "gauge",
        "The share of the devices' time during which a host thread was busy; 1 is all.",
        lambda seen: seen.trace.analysis.overlap.of_device,
    ),
    Figure(
        "stepweave:actor_busy_ratio",
        "gauge",
        "The share of its time that a host thread or a stream works; 1 is all.",
        lambda seen: [((each.actor,), each.busy) for each in seen.trace.analysis.actors],
        ("actor",),
    ),
    Figure(
        "stepweave:handover_seconds_per_step",
        "gauge",
        "Time per step in which an actor's next op could have begun, and had not.",
        lambda seen: [((each.actor,), each.late_us / 1e6) for each in seen.trace.analysis.actors],
        ("actor",),
    ),
    Figure(
        "stepweave:idle_seconds_per_step",
        "gauge",
        "Idle time of an actor per step before `op`, by what held that op: `held`, of `distance` "
        "steps before; `by` a wait, a launch, or the order of the actor's ops.",
        _idle,
        ("actor", "op", "by", "held", "distance"),
    ),
    Figure(
        "stepweave:wait_seconds_per_step",
        "gauge",
        "Time per step that `op` waited for the event of `event`, of `distance` steps before.",
        _waits,
        ("op", "event", "distance"),
    ),
    Figure(
        "stepweave:op_median_seconds",
        "gauge",
        "How long an op takes: the median of the last steps.",
        lambda seen: [((op.op, op.actor), op.median_us / 1e6) for op in seen.trace.analysis.ops],
        ("op", "actor"),
    ),
    Figure(
        "stepweave:observed_steps",
        "gauge",
        "Steps that these figures are of.",
        lambda seen: len(seen.trace.analysis.steady),
    ),
    Figure(
        "stepweave:observed_age_seconds",
        "gauge",
        "How long ago the last of these steps ended.",
        lambda seen: max(perf_counter() - seen.ended_s, 0.0),
    ),
)
