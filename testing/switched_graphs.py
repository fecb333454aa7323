"""Random pairs of step graphs, for tests of switches: a graph, and what it may become in a run.

Two in three pairs are one graph in two forms, as a pipeline at two depths is: other offsets, a node
on another thread, other numbers of slots, other costs, a node less. The others have only names in
common. Some of them cannot follow each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ..graph import arguments
from ..graph.node import Node, Op, State
from ..graph.step_graph import StepGraph
from .graphs import random_step_graph

Change = Callable[[Random, list[Node]], list[Node]]


def random_switch(
    seed: int, *, most_nodes: int = 6, keyed: bool = True
) -> tuple[StepGraph, StepGraph]:
    """Two random graphs; the same seed gives the same two on every machine.

    `keyed`: some states have keys, whose users are not ordered with those of another class.
    Raises `GraphError` if `most_nodes` is not a whole number from 1 on.
    """
    arguments.whole("random_switch", "most_nodes", most_nodes, 1)
    random = Random(seed)
    graph = random_step_graph(seed, most_nodes=most_nodes)
    if random.random() < 1 / 3:
        other = random_step_graph(seed + 1_000_003, most_nodes=most_nodes)
        return _keyed(random, keyed, graph, other)
    nodes = list(graph.nodes)
    for change in random.sample(_CHANGES, random.randint(1, 3)):
        nodes = change(random, nodes)
    values = {
        name: replace(value, slots=random.choice([None, 2, 3, value.slots]))
        if value.storage == "slots" and random.random() < 0.3
        else value
        for name, value in graph.values.items()
    }
    return _keyed(random, keyed, graph, replace(graph, nodes=tuple(nodes), values=values))


def _deeper(random: Random, nodes: list[Node]) -> list[Node]:
    """The first nodes run further ahead."""
    ahead, by = random.randint(1, len(nodes)), random.choice([-2, -1, -1, 1])
    return [
        replace(node, offset=node.offset + by * (place < ahead)) for place, node in enumerate(nodes)
    ]


def _moved(random: Random, nodes: list[Node]) -> list[Node]:
    """A node on another thread."""
    place = random.randrange(len(nodes))
    moved = replace(nodes[place], actor=random.choice(["driver", "helper", "other"]))
    return [*nodes[:place], moved, *nodes[place + 1 :]]


def _priced(random: Random, nodes: list[Node]) -> list[Node]:
    """Ops that take other times."""

    def priced(op: Op) -> Op:
        return replace(op, cost_us=random.choice([1.0, 10.0, 50.0, 300.0]))

    return [
        replace(node, host=tuple(map(priced, node.host)), device=tuple(map(priced, node.device)))
        for node in nodes
    ]


def _less(random: Random, nodes: list[Node]) -> list[Node]:
    """Without a node that writes nothing which others read."""
    read = {r.name for node in nodes for op in (*node.host, *node.device) for r in op.reads}
    idle = [
        place
        for place, node in enumerate(nodes)
        if not any(name in read for op in (*node.host, *node.device) for name in op.writes)
    ]
    if not idle or len(nodes) == 1:
        return nodes
    gone = random.choice(idle)
    return [*nodes[:gone], *nodes[gone + 1 :]]


_CHANGES: list[Change] = [_deeper, _deeper, _moved, _priced, _less]


def _keyed(random: Random, wanted: bool, *graphs: StepGraph) -> tuple[StepGraph, StepGraph]:
    """In some pairs states have keys, which some ops use on behalf of others than their owner."""
    users = {"": random.choice(["owner", "owner", "swap"])}
    keyed = {f"s{number}" for number in range(2) if random.random() < 0.3 and wanted}

    def used(node: str, op: Op) -> Op:
        mine = sorted(keyed & {*op.writes, *(read.name for read in op.reads)})
        chosen = users.setdefault(node, random.choice(["owner", "owner", "swap"]))
        return replace(op, classes=tuple((name, chosen) for name in mine))

    found = []
    for graph in graphs:
        nodes = [
            replace(
                node,
                host=tuple(used(node.name, op) for op in node.host),
                device=tuple(used(node.name, op) for op in node.device),
            )
            for node in graph.nodes
        ]
        touched = {
            name
            for node in nodes
            for op in (*node.host, *node.device)
            for name in (*op.writes, *(read.name for read in op.reads))
        }
        values = [value for name, value in graph.values.items() if _written(nodes, name)]
        states = [
            State(name, keys="blocks" if name in keyed else None)
            for name in graph.states
            if name in touched
        ]
        found.append(StepGraph.build(nodes, values, states, order=graph.order, name=graph.name))
    return found[0], found[1]


def _written(nodes: list[Node], name: str) -> bool:
    return any(name in op.writes for node in nodes for op in (*node.host, *node.device))
