"""The graph of a pipeline whose forward pass is spread over stages, with groups of rows in flight.

The pipeline's own graph at depth K, for K groups, with three changes. What the forward pass does
on the device becomes a chain of stages with a message between each two; drafting and sampling
belong to the last. A row is in no other step while one is in flight, so what a step carries to the
next it carries to the one K later. And data kept by row or block have parts that steps in flight do
not share, so an op comes after those of K steps before, not after those of the step before.

Each rank has host threads of its own that do the same work at the same time; one stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..graph.node import Node, Op, Read, Value
from ..graph.step_graph import StepGraph, Vertex

LINK = "link"


@dataclass(frozen=True)
class Staged:
    """A graph with stages, and which of its ops stand for what."""

    graph: StepGraph
    stages: tuple[str, ...]  # the device op of each stage
    messages: tuple[str, ...]  # that from each stage to the next


def staged(
    graph: StepGraph, *, forward: str, scheduler: str, settle: str, stages: int, groups: int
) -> Staged:
    """`graph` with the device op of the node `forward` spread over `stages`.

    `scheduler` names the node that chooses the rows; what it changes in place all rows share.
    `settle` names the one that makes tokens known: the host launches a step as soon as it is
    scheduled, and settles it K − 1 steps later. With one stage and one group it is the graph as it
    is.
    """
    if stages == 1 and groups == 1:
        return Staged(graph, (f"{forward}.device",), ())
    first = next(node.offset for node in graph.nodes if node.name == scheduler)
    nodes = (n if n.name == settle else replace(n, offset=first) for n in graph.nodes)
    parted = _parted(replace(graph, nodes=tuple(nodes), order="keep"), scheduler, groups)
    return _spread(parted, forward, stages)


# --- exclusive groups -----------------------------------------------------------------------------


def _parted(graph: StepGraph, scheduler: str, groups: int) -> StepGraph:
    """Carries of `groups` steps, and the data that rows do not share as values that are handed on.

    A state that several ops touch in turn, of which each step has a part of its own, is a chain of
    values: each op reads what the one before it left, the first what the last left K steps ago.
    """
    vertices = graph.vertices
    shared = {
        name
        for vertex in vertices.values()
        if vertex.node.name == scheduler
        for name in (*vertex.op.writes, *(read.name for read in vertex.op.reads))
    } & graph.states.keys()
    chains = {
        name: [op for op, vertex in vertices.items() if _touches(vertex.op, name)]
        for name in graph.states
        if name not in shared
    }
    values = dict(graph.values)
    for name, ops in chains.items():
        host = all(vertices[op].side == "host" for op in ops)
        for place, _ in enumerate(ops):
            link = _link(name, place)
            values[link] = Value(link, place="host" if host else "device", storage="fresh")

    def changed(vertex: Vertex) -> Op:
        op, reads, writes = vertex.op, [], [n for n in vertex.op.writes if n not in chains]
        for read in op.reads:
            if read.name not in chains:
                reads.append(Read(read.name, read.carry * groups))
        for name, ops in chains.items():
            if vertex.name in ops:
                at = ops.index(vertex.name)
                before = Read(_link(name, len(ops) - 1), groups) if at == 0 else None
                reads.append(before or Read(_link(name, at - 1)))
                writes.append(_link(name, at))
        return replace(op, reads=tuple(reads), writes=tuple(writes))

    states = {name: state for name, state in graph.states.items() if name in shared}
    return replace(replace(graph, values=values, states=states).with_ops(changed), states=states)


def _touches(op: Op, name: str) -> bool:
    return name in op.writes or any(read.name == name for read in op.reads)


def _link(state: str, place: int) -> str:
    return f"{state}.{place}"


# --- stages ---------------------------------------------------------------------------------------


def _spread(graph: StepGraph, forward: str, stages: int) -> Staged:
    """The forward pass as a chain of stages, the nodes after it on the stream of the last one."""
    whole = next(node for node in graph.nodes if node.name == forward)
    stream = whole.stream
    assert stream is not None, "a forward pass has device ops"
    chain = list(_chain(whole, stages))
    nodes: list[Node] = []
    behind = False
    for node in graph.nodes:
        if node is whole:
            nodes += chain
            behind = True
        elif behind and node.stream == stream and stages > 1:
            nodes.append(replace(node, stream=chain[-1].stream))
        else:
            nodes.append(node)
    values = {**graph.values, **{value.name: value for value in _messages(stages)}}
    built = StepGraph.build(
        nodes,
        values.values(),
        graph.states.values(),
        order=graph.order,
        name=graph.name,
        launches=graph.launches,
    )
    return Staged(
        built,
        tuple(f"{node.name}.device" for node in chain[::2]),
        tuple(f"{node.name}.device" for node in chain[1::2]),
    )


def _messages(stages: int) -> Iterator[Value]:
    for stage in range(1, stages):
        yield Value(f"leaves_{stage}", place="device", storage="slots")
        yield Value(f"enters_{stage}", place="device", storage="slots")


def _chain(whole: Node, stages: int) -> Iterator[Node]:
    """Stage, message, stage …; only the first has a host op that takes time, and all its reads."""
    (op,) = whole.device
    own = tuple(read for read in op.reads if read.name not in op.writes)
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        reads = op.reads if first else (Read(f"enters_{stage}"), *own)
        writes = op.writes if last else (f"leaves_{stage + 1}",)
        node = replace(whole, device=(replace(op, reads=reads, writes=writes),))
        if not first:
            yield _launched(f"{whole.name}_{stage}", whole, f"{whole.stream}_{stage}", node.device)
        else:
            yield node
        if not last:
            message = Op((Read(f"leaves_{stage + 1}"),), (f"enters_{stage + 1}",))
            yield _launched(f"send_{stage + 1}", whole, f"{LINK}_{stage + 1}", (message,))


def _launched(name: str, like: Node, stream: str, device: Sequence[Op]) -> Node:
    """A device node at the place of `like`, launched by a host op of no duration."""
    return Node(
        name=name,
        host=(Op(cost_us=0.0),),
        device=tuple(device),
        actor=like.actor,
        stream=stream,
        offset=like.offset,
        kind=like.kind if name.startswith(like.name) else "message",
        line=like.line,
    )
