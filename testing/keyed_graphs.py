"""Random step graphs with keyed states, whose keys pass between classes of users."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Literal

from ..graph.node import OWNER, Node, Op, Read, State
from ..graph.step_graph import StepGraph
from .graphs import random_step_graph

CLASSES = (OWNER, "swap", "fetch")


def random_keyed_graph(
    seed: int, *, most_nodes: int = 6, order: Literal["keep", "search"] = "keep"
) -> StepGraph:
    """A random graph with one to three keyed states; the same seed gives the same on every machine.

    Threads, streams, offsets, values and phases are those of `random_step_graph`, but in most
    graphs few of the reads of values are there, so that nothing orders some users of keys. Each op
    that accesses a keyed state does so on behalf of one of three classes. Some graphs cannot be
    ordered.
    """
    graph = random_step_graph(seed, most_nodes=most_nodes, order=order)
    return with_keys(graph, Random(seed + 1_000_003))


def with_keys(graph: StepGraph, random: Random) -> StepGraph:
    """The graph with keyed states more, its own states keyed too; without modes and ranks."""
    extra = [f"keyed{number}" for number in range(random.choice((1, 1, 2)))]
    users = CLASSES[: random.choice((2, 2, 3))]
    kept = random.choice((0.0, 0.2, 1.0))  # of the reads of values

    def stays(read: Read) -> bool:
        return read.name in graph.states or random.random() < kept

    def keyed(op: Op) -> Op:
        more = [name for name in extra if random.random() < 0.6]
        reads = [Read(name) for name in more if random.random() < 0.6]
        writes = [name for name in more if Read(name) not in reads or random.random() < 0.4]
        touched = dict.fromkeys([*op.writes, *(r.name for r in op.reads), *more])
        states = [name for name in touched if name in graph.states or name in extra]
        return replace(
            op,
            reads=(*filter(stays, op.reads), *reads),
            writes=(*op.writes, *writes),
            classes=tuple((name, random.choice(users)) for name in states),
        )

    def ops(node: Node) -> Node:
        host, device = tuple(map(keyed, node.host)), tuple(map(keyed, node.device))
        return replace(node, host=host, device=device)

    nodes = [ops(node) for node in graph.nodes]
    every = [op for node in nodes for op in (*node.host, *node.device)]
    states = {name for op in every for name in dict(op.classes)}
    return StepGraph.build(
        nodes,
        graph.values.values(),
        [State(name, keys=f"keys of {name}") for name in sorted(states)],
        order=graph.order,
        name="keyed",
    )
