"""The requests of a cluster file: when each comes, and how long its prompt and answer are."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from ..configs.errors import ConfigError
from ..loadgen.arrivals import Arrivals
from ..loadgen.traces import read_trace
from ..loadgen.workload import drawn_length
from .file import Cluster, LoadConfig, wrong_at
from .jobs import Job

DEFAULT_REQUESTS = 100


def jobs_of(cluster: Cluster) -> list[Job]:
    """All requests in the order of time; the same file gives the same ones.

    Raises `ConfigError` for a trace that cannot be read.
    """
    load = cluster.config.load
    shapes = _random(load) if load.trace is None else _traced(cluster, load, load.trace)
    return [
        Job(uid, at_s * 1e6, prompt, output, f"{load.seed} {uid}")
        for uid, (at_s, prompt, output) in enumerate(shapes)
    ]


def _random(load: LoadConfig) -> list[tuple[float, int, int]]:
    count = load.requests or DEFAULT_REQUESTS
    draw = np.random.default_rng([load.seed, 1])
    offsets = Arrivals(load.rate or inf, load.burstiness).offsets(count, load.seed)
    return [
        (
            at_s,
            drawn_length(draw, load.input, load.spread),
            drawn_length(draw, load.output, load.spread),
        )
        for at_s in offsets
    ]


def _traced(cluster: Cluster, load: LoadConfig, file: str) -> list[tuple[float, int, int]]:
    try:
        trace = read_trace(cluster.folder / file)
    except ConfigError as error:
        if error.problems[0].mark.line is not None:
            raise
        raise wrong_at(cluster, ("load", "trace"), error.message) from error
    if load.requests is not None and load.requests > len(trace):
        said = f"the trace has {len(trace)} requests only"
        raise wrong_at(cluster, ("load", "requests"), said)
    return [
        (
            each.at_s / load.speed_up,
            max(1, round(each.input_tokens * load.length_scale)),
            max(1, round(each.output_tokens * load.length_scale)),
        )
        for each in trace[: load.requests]
    ]


def routed(jobs: Sequence[Job], replicas: int, routing: str) -> list[list[Job]]:
    """The requests of each replica, in the order of time."""
    found: list[list[Job]] = [[] for _ in range(replicas)]
    given = [0] * replicas
    for place, job in enumerate(jobs):
        to = place % replicas if routing == "round_robin" else given.index(min(given))
        found[to].append(job)
        given[to] += job.prompt + job.output
    return found
