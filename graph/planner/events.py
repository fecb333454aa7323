"""The periodic event graph: actor programs, and the order that they give for nothing.

An edge (u → v, d) says that u of step i is done before v of step i + d starts (Reiter 1968,
"Scheduling parallel computations", calls such graphs computation graphs). Three kinds are
free: an actor runs its program in order, over and over, a device op starts after the op
that launches it, and the ends of a comm node wait for each other. Everything else is derived from
these edges and the requirements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..node import Node
from ..plan import Placed, Plan
from ..ranks import ends
from ..step_graph import StepGraph

if TYPE_CHECKING:  # half a second of start-up that only the exports below need
    import networkx as nx

Kind = Literal["order", "launch", "comm", "wait"]
Actors = Mapping[str, tuple[Placed, ...]]


class Precedence(NamedTuple):
    """`source` of step i is done before `target` of step i + distance starts."""

    source: str
    target: str
    distance: int
    kind: Kind


def listing_programs(graph: StepGraph) -> dict[str, tuple[Placed, ...]]:
    """Host threads running their ops in listing order, at the declared offsets."""
    programs: dict[str, list[Placed]] = {}
    for vertex in graph.vertices.values():
        if vertex.side == "host":
            programs.setdefault(vertex.actor, []).append((vertex.name, vertex.offset))
    return {actor: tuple(program) for actor, program in programs.items()}


def with_streams(graph: StepGraph, programs: Actors) -> dict[str, tuple[Placed, ...]]:
    """Add the streams to the host threads' programs.

    A stream has no choice: it runs what was launched, in the order of the launches. Where
    several host threads launch on one stream, the listing order decides (and the launch-order
    requirements of `requirements.py` hold the threads to it).
    """
    actors = {actor: tuple(program) for actor, program in programs.items()}
    place = {
        op: (thread, rank, offset)
        for thread, program in actors.items()
        for rank, (op, offset) in enumerate(program)
    }
    streams: dict[str, list[str]] = {}
    for vertex in graph.vertices.values():
        if vertex.side == "device":
            streams.setdefault(vertex.actor, []).append(vertex.name)
    launch = {name: vertex.launch or "" for name, vertex in graph.vertices.items()}
    for stream, ops in streams.items():
        if len({place[launch[op]][0] for op in ops}) == 1:
            ops.sort(key=lambda op: place[launch[op]][1])  # stable: phases stay in order
        actors[stream] = tuple((op, place[launch[op]][2]) for op in ops)
    return actors if len(graph.ranks) < 2 else _by_rank(graph, actors)


def _by_rank(graph: StepGraph, actors: Actors) -> dict[str, tuple[Placed, ...]]:
    """The actors of one rank together."""
    rank = {actor: graph.vertices[ops[0][0]].node.rank or 0 for actor, ops in actors.items()}
    return {actor: actors[actor] for actor in sorted(actors, key=rank.__getitem__)}


def program_edges(program: Iterable[Placed]) -> list[Precedence]:
    """The order of one actor: each op before the next, the last before the first one round on."""
    ops = tuple(program)
    edges = [Precedence(u, v, at_u - at_v, "order") for (u, at_u), (v, at_v) in pairwise(ops)]
    (last, at_last), (first, at_first) = ops[-1], ops[0]
    return [*edges, Precedence(last, first, at_last - at_first + 1, "order")]


def launch_edges(graph: StepGraph) -> list[Precedence]:
    """Each node's launch op before the first of its device ops; the stream orders the rest."""
    return [
        Precedence(node.op_names("host")[-1], node.op_names("device")[0], 0, "launch")
        for node in graph.nodes
        if node.device
    ]


def comm_edges(graph: StepGraph) -> list[Precedence]:
    """How the ends of each comm node wait for each other; a channel of no capacity yet is endless.

    No member leaves a collective before all have entered it. The receiver leaves a message after
    its sender has entered it, and the sender of step i + capacity after the receiver of step i has.
    """
    edges = []
    for nodes in ends(graph).values():
        for rank, node in nodes.items():
            enter = meeting_ops(node)[0]
            assert node.comm is not None, "these are comm nodes"
            sends = node.comm.kind == "collective" or rank == node.comm.members[0]
            distance = 0 if sends else node.comm.capacity
            if distance is not None:
                edges += [
                    Precedence(enter, meeting_ops(other)[-1], distance, "comm")
                    for away, other in nodes.items()
                    if away != rank
                ]
    return edges


def meeting_ops(node: Node) -> tuple[str, ...]:
    """The ops in which a comm node meets the others."""
    return node.op_names("device" if node.device else "host")


def free_edges(graph: StepGraph, actors: Actors) -> list[Precedence]:
    """Every order that costs nothing."""
    edges = [edge for program in actors.values() for edge in program_edges(program)]
    return edges + launch_edges(graph) + comm_edges(graph)


def plan_edges(plan: Plan) -> list[Precedence]:
    """Every order that a plan keeps: the free edges and its waits."""
    waits = [Precedence(w.source, w.target, w.distance, "wait") for w in plan.waits]
    return free_edges(plan.graph, plan.actors) + waits


def padding(edges: Sequence[Precedence]) -> int:
    """How many steps back a shortest path goes at most (Bellman-Ford, from all ops at once).

    So far beyond the steps of a run actors go on, for every order to hold there too.
    """
    least = {op: 0 for source, target, *_ in edges for op in (source, target)}
    for _ in least:
        before = dict(least)
        for source, target, distance, _ in edges:
            least[target] = min(least[target], least[source] + distance)
        if least == before:
            break
    # Without a break a cycle is negative: a deadlock, which no padding changes.
    return -min(least.values(), default=0)


def event_graph(plan: Plan) -> nx.MultiDiGraph:
    """The periodic event graph of a plan, for networkx: cycles, layout, the reader's own questions.

    Vertices carry `actor`, `side`, `offset` and `duration_us`, edges `distance` and `kind`.
    """
    import networkx as nx

    events = nx.MultiDiGraph(name=plan.graph.name)
    offsets = {op: offset for program in plan.actors.values() for op, offset in program}
    for name, vertex in plan.graph.vertices.items():
        events.add_node(
            name,
            actor=vertex.actor,
            side=vertex.side,
            offset=offsets[name],
            duration_us=plan.costs.get(name),
        )
    for source, target, distance, kind in plan_edges(plan):
        events.add_edge(source, target, key=kind, distance=distance, kind=kind)
    return events


def to_networkx(graph: StepGraph) -> nx.MultiDiGraph:
    """The declared data flow, before any order is chosen: one edge for each read of a value.

    Vertices are ops, edges go from writer to reader and carry `value` and `carry`; the launch
    edges of device nodes are there too, as `kind="launch"`.
    """
    import networkx as nx

    flow = nx.MultiDiGraph(name=graph.name)
    for name, vertex in graph.vertices.items():
        flow.add_node(name, actor=vertex.actor, side=vertex.side, node=vertex.node.name)
    writers = {
        value: name
        for name, vertex in graph.vertices.items()
        for value in vertex.op.writes
        if value in graph.values
    }
    for name, vertex in graph.vertices.items():
        for read in vertex.op.reads:
            if read.name in writers:
                flow.add_edge(
                    writers[read.name], name, kind="read", value=read.name, carry=read.carry
                )
    for source, target, _, kind in launch_edges(graph):
        flow.add_edge(source, target, kind=kind)
    return flow
