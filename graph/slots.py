"""How many copies each value needs: least period, then fewest waits, then fewest bytes.

The number of slots K enters only through the WAR and WAW distances K − c and K. More slots
never order anything more, so the least period is that of unlimited slots, and a value has
nothing to gain beyond the K at which the rest of the graph implies all its WAR and WAW (modulo
variable expansion, Lam 1988, finds the same number from lifetimes). Between these bounds
all choices are compared, whole batches at a time. Values with the same accesses share a choice: the
smallest K among them sets the waits, so none gains by having more than another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from .candidates import Trial
from .requirements import gate, value_requirements
from .step_graph import StepGraph

LIMIT = 4096  # choices compared exhaustively; beyond it, one value at a time
_BATCH = 256

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Values with the same accesses. Each gate is needed at distance K + its third entry."""

    values: tuple[str, ...]
    gates: tuple[tuple[int, int, int], ...]
    bytes: int


def slot_gates(graph: StepGraph, index: Mapping[str, int], value: str) -> list[tuple[int, int, int]]:
    """The orders that K slots need, as (source, target, distance − K), launch order included."""
    found = []
    for needed in value_requirements(graph, value, 0):
        if needed.hazard == "RAW":
            continue
        source, target, distance = gate(graph, needed)
        own = source == target and needed.source != needed.target
        if own and distance <= 0:  # `gate` saw a distance below 0 as it is for no slots
            distance = needed.distance + 1
        found.append((index[source], index[target], distance))
        u, v = graph.vertices[needed.source].launch, graph.vertices[needed.target].launch
        if u is not None and v is not None:
            found.append((index[u], index[v], needed.distance + (u == v)))
    nearest: dict[tuple[int, int], int] = {}
    for source_, target_, distance in found:
        pair = (source_, target_)
        nearest[pair] = min(distance, nearest.get(pair, distance))
    return sorted((s, t, d) for (s, t), d in nearest.items())
