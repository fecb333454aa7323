"""Who changes the KV cache, told apart by what else it reads."""

from __future__ import annotations

from ..graph.node import Value
from ..graph.step_graph import StepGraph, Vertex
from .values import KV


def changing_kv(graph: StepGraph, reading: Value) -> list[Vertex]:
    """The ops that change the cache by a value that they read, in the order of the listing."""
    return [
        vertex
        for vertex in graph.vertices.values()
        if KV.name in vertex.op.writes and reading.name in {read.name for read in vertex.op.reads}
    ]
