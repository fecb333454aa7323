"""What keeps its place as one when the order of a host thread is chosen.

A node is such a unit: its phases run one after another. Where a graph says `launches: together`, so
are launches that can be issued as one. A node joins the one that is listed directly before it, if
both launch device ops from the same host thread at the same offset, and its own host part does
nothing but launch: then its launch stands directly behind that of the other in every order, and
nothing comes between what a device replays as one (`segments.py`). A node with anything to do on
the host parts them, and so does any that is listed between.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..node import Node, Side
from ..step_graph import StepGraph


@dataclass(frozen=True)
class Unit:
    """Nodes of one host thread whose host ops run one after another, with nothing between them."""

    nodes: tuple[Node, ...]

    @property
    def actor(self) -> str:
        return self.nodes[0].actor

    @property
    def offset(self) -> int:
        return self.nodes[0].offset

    @property
    def name(self) -> str:
        """That of its first node: no two units share a node."""
        return self.nodes[0].name

    @property
    def streams(self) -> tuple[str, ...]:
        """Where its device ops run, each once."""
        return tuple(dict.fromkeys(node.stream for node in self.nodes if node.stream))

    def ops(self, side: Side) -> tuple[str, ...]:
        return tuple(op for node in self.nodes for op in node.op_names(side))

    def ops_on(self, stream: str) -> tuple[str, ...]:
        """Its device ops on one stream, in their order there."""
        on_it = (node for node in self.nodes if node.stream == stream)
        return tuple(op for node in on_it for op in node.op_names("device"))


def units(graph: StepGraph) -> tuple[Unit, ...]:
    """All units, in listing order: the nodes of each are listed one after another."""
    parts: list[list[Node]] = []
    for node in graph.nodes:
        if graph.launches == "together" and parts and _joins(node, parts[-1][-1]):
            parts[-1].append(node)
        else:
            parts.append([node])
    return tuple(Unit(tuple(nodes)) for nodes in parts)


def _joins(node: Node, before: Node) -> bool:
    """Whether the launch of `node` only launches, and so may be issued with the one before it."""
    [*others, launch] = node.host
    bare = not others and not launch.reads and not launch.writes
    beside = (node.actor, node.offset) == (before.actor, before.offset)
    return bare and beside and bool(node.device and before.device)
