"""Refusing wrong declarations of a graph of several ranks: what is where, and who meets whom."""

from __future__ import annotations

from typing import get_args

from .arguments import MAX_DISTANCE, whole
from .errors import GraphError
from .node import Meeting, Node
from .ranks import ends
from .step_graph import StepGraph


def check_ranks(graph: StepGraph) -> None:
    """Raise a `GraphError` for the first declaration about ranks that is wrong."""
    _check_homes(graph)
    called: dict[tuple[str, int], Node] = {}
    for node in graph.nodes:
        if node.comm is None:
            continue
        other = called.setdefault((node.comm.name, node.rank or 0), node)
        if other is not node:
            problem = f"it calls {node.comm.name!r}, as {other.name!r} of its rank does"
            raise _wrong(node, "SW-DUPLICATE", problem, "Give each of them a name of its own.")
    for comm, nodes in ends(graph).items():
        _check_meeting(graph, comm, nodes)


def _wrong(node: Node, code: str, problem: str, advice: str) -> GraphError:
    return GraphError(f"node {node.name!r}: {problem}. {advice}", code=code, line=node.line)


def _check_homes(graph: StepGraph) -> None:
    """Each datum and each actor lives on one rank."""
    home: dict[str, Node] = {}
    for vertex in graph.vertices.values():
        touched = [read.name for read in vertex.op.reads]
        for what in (vertex.actor, *touched, *vertex.op.writes):
            first = home.setdefault(what, vertex.node)
            if first.rank != vertex.node.rank:
                raise _wrong(
                    vertex.node,
                    "SW-RANK",
                    f"it uses {what!r} on rank {vertex.node.rank}, and {first.name!r} on rank "
                    f"{first.rank}",
                    "What ranks share must be sent: give each its own, and a message between.",
                )


def _check_meeting(graph: StepGraph, name: str, nodes: dict[int, Node]) -> None:
    """All ends of a comm node are there, and say the same."""
    node = next(iter(nodes.values()))
    comm = node.comm
    assert comm is not None, "these are comm nodes"
    if comm.kind not in get_args(Meeting):
        problem = f"its comm is a {comm.kind!r}"
        raise _wrong(node, "SW-ARGUMENT", problem, f"Say {' or '.join(get_args(Meeting))}.")
    least = 2 if comm.kind == "message" else 1
    if len(set(comm.members)) < max(least, len(comm.members)) or (
        comm.kind == "message" and len(comm.members) > 2
    ):
        wanted = "a sender and a receiver" if comm.kind == "message" else "each member once"
        raise _wrong(node, "SW-RANK", f"its members are {list(comm.members)}", f"Name {wanted}.")
    if comm.capacity is not None:
        whole(f"node {node.name!r}", "capacity", comm.capacity, 0, MAX_DISTANCE, "SW-CHANNEL")
    for rank in comm.members:
        if rank in (graph.ranks or nodes) and rank not in nodes:
            raise _wrong(
                node,
                "SW-MATCH",
                f"rank {rank} is a member of {name!r} and never calls it",
                "All members call it in every step; give each its end, or name fewer members.",
            )
    for rank, other in nodes.items():
        if rank not in comm.members:
            problem = f"rank {rank} calls {name!r} without being a member"
            raise _wrong(other, "SW-MATCH", problem, "Name it among the members.")
        if other.comm != comm:
            raise _wrong(
                other,
                "SW-MATCH",
                f"it says of {name!r} {_difference(comm, other.comm)}",
                "All ends of a comm node must say the same.",
            )
        phases = [op.phase for op in (other.device or other.host)]
        if phases != ["enter", "leave"]:
            problem = f"its phases are {phases}"
            raise _wrong(other, "SW-PHASE", problem, "A comm node has the phases enter and leave.")
        if bool(other.device) != bool(node.device):
            problem = f"it meets {node.name!r}, of which only one runs on a stream"
            raise _wrong(other, "SW-MATCH", problem, "Give both a stream, or none.")


def _difference(one: object, other: object) -> str:
    """`capacity 0 on one rank and 1 on another`: the first field in which two ends differ."""
    names = type(one).__dataclass_fields__  # type: ignore[attr-defined]
    name = next(name for name in names if getattr(one, name) != getattr(other, name))
    return f"{name} {getattr(other, name)!r}, and another end {getattr(one, name)!r}"
