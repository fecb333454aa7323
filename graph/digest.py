"""A digest of what a plan depends on, so that an order found once need not be searched again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple

from .node import Op
from .step_graph import StepGraph


def declaration_digest(
    graph: StepGraph, costs: Mapping[str, float], pins: Mapping[str, int | None]
) -> str:
    """SHA-256 of the declared nodes and data, the durations and the pinned slots; not of code."""
    declared: dict[str, object] = {
        "nodes": [
            {
                "name": node.name,
                "actor": node.actor,
                "stream": node.stream,
                "offset": node.offset,
                "launch_latency_us": node.launch_latency_us,
                "host": [_op(op) for op in node.host],
                "device": [_op(op) for op in node.device],
            }
            for node in graph.nodes
        ],
        "values": [
            [value.name, value.place, value.storage, value.slots, value.nbytes, value.external]
            for value in graph.values.values()
        ],
        "states": list(graph.states),
        "launches": graph.launches,
        "costs": dict(costs),
        "slots": dict(pins),
    }
    comms = [[node.name, *astuple(node.comm)] for node in graph.nodes if node.comm]
    if comms:
        declared["comms"] = comms
    turns = [[value.name, *astuple(value.turn)] for value in graph.values.values() if value.turn]
    if turns:
        declared["turns"] = turns
    leases = [[state.name, *lease] for state in graph.states.values() for lease in state.leases]
    if leases:
        declared["leases"] = leases
    text = json.dumps(declared, sort_keys=True, separators=(",", ":"), default=int)
    return hashlib.sha256(text.encode()).hexdigest()


def _op(op: Op) -> list[object]:
    said: list[object] = [op.phase, [[r.name, r.carry] for r in op.reads], list(op.writes)]
    return [*said, [list(each) for each in op.classes]] if op.classes else said
