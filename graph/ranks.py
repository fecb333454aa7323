"""Graphs of several ranks: one declaration, the nodes of each rank with names of their own.

A *rank* is a process with its own threads, streams and memory. Each node, value and state of the
graph lives on one rank, and so do all required orderings; ranks meet in comm nodes only. `u` of
rank 1 is called `u@1`. What is declared once is there once on each of its ranks, and a comm node
once on each member, so that no end of it can be forgotten.

NCCL and gloo match the calls on a communicator by their order, not by name. So a communicator is a
state that each call changes: then the calls are in the reference order on every rank. Nor do they
promise that two operations of a device run at the same time, so those change a second state there,
unless the node is `concurrent`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from . import arguments
from .errors import GraphError, did_you_mean
from .node import Comm, Node, Op, Read, State, Value
from .step_graph import StepGraph

MAX_RANKS = 1024
DEVICE_STATE = "nccl"
_RANK = re.compile(r"@\d+")
FIRING = re.compile(r"#\d+")


@dataclass(frozen=True)
class Ranked:
    """A node of a graph of several ranks, as it is declared: once for all of its ranks.

    `ranks`: where it is, or None for everywhere; of a comm node its members say so. `offsets`: by
    rank, where it differs from the node's. The `comm` of a message makes the sender read what the
    node reads, and the receiver write what it writes. `ends`: by rank, the node that a comm node is
    there, with accesses of its own.
    """

    node: Node
    ranks: tuple[int, ...] | None = None
    comm: Comm | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, Node] = field(default_factory=dict)


def at_rank(name: str, rank: int) -> str:
    """`batch` of rank 1 is `batch@1`."""
    return f"{name}@{rank}"


def declared_name(graph: StepGraph, name: str) -> str:
    """The name of an op, a datum or an actor as it is declared, for all ranks and firings."""
    if graph.declared is not None:
        name = FIRING.sub("", name)
    return _RANK.sub("", name) if graph.ranks else name


def ranked_graph(
    nodes: Sequence[Ranked],
    values: Iterable[Value],
    states: Iterable[str | State] = (),
    *,
    ranks: int,
    listing: Mapping[int, Sequence[str]] | None = None,
    order: Literal["keep", "search"] = "search",
    name: str = "step",
    launches: Literal["apart", "together"] = "apart",
) -> StepGraph:
    """The graph of `ranks` ranks. `listing`: by rank, its nodes in another order than here.

    Raises `GraphError` for the first wrong declaration.
    """
    arguments.whole("ranked_graph", "ranks", ranks, 1, MAX_RANKS, code="SW-RANK")
    declared = [_checked(each, ranks) for each in nodes]
    flat = [_at(each, rank) for each, rank in _listed(declared, ranks, dict(listing or {}))]
    said = [State(each) if isinstance(each, str) else each for each in states]
    here = {rank: _touched(flat, rank) for rank in range(ranks)}
    own_values = [replace(v, name=n) for v in values for n in _names(v.name, here)]
    own_states = [replace(s, name=n) for s in said for n in _names(s.name, here)]
    taken = {*(v.name for v in own_values), *(s.name for s in own_states)}
    implied = dict.fromkeys(n for node in flat for n in _implied(node) if n not in taken)
    return StepGraph.build(
        flat,
        own_values,
        [*own_states, *map(State, implied)],
        order=order,
        name=name,
        launches=launches,
        ranks=range(ranks),
    )


def _names(name: str, here: Mapping[int, set[str]]) -> list[str]:
    """A datum on each rank that touches it; on the first where none does."""
    touching = [rank for rank, names in here.items() if at_rank(name, rank) in names]
    return [at_rank(name, rank) for rank in touching or [0]]


def _touched(nodes: Iterable[Node], rank: int) -> set[str]:
    ops = [op for node in nodes if node.rank == rank for op in (*node.host, *node.device)]
    return {n for op in ops for n in (*op.writes, *(read.name for read in op.reads))}


def _implied(node: Node) -> Iterator[str]:
    """The states of its communicator, and of the device that it runs on."""
    if node.comm and node.rank is not None:
        yield at_rank(node.comm.communicator, node.rank)
        if node.device and not node.comm.concurrent:
            yield at_rank(DEVICE_STATE, node.rank)


def _checked(each: Ranked, ranks: int) -> Ranked:
    """A declaration whose ranks exist, and whose ops can be split if they meet others."""
    where = f"node {each.node.name!r}"
    line = each.node.line
    members = each.comm.members if each.comm else each.ranks
    for rank in {*(members or ()), *each.offsets, *each.ends}:
        if not 0 <= rank < ranks:
            problem = f"{where}: there is no rank {rank}; the graph has {ranks}, from 0 on."
            raise GraphError(problem, code="SW-RANK", line=line)
    if each.comm is None:
        return each
    if any(len(end.host) > 1 or len(end.device) > 1 for end in (each.node, *each.ends.values())):
        raise GraphError(
            f"{where}: a comm node has the phases enter and leave, and no others. Declare what "
            "comes before or after it as nodes of their own.",
            code="SW-PHASE",
            line=line,
        )
    return each


def _ranks_of(each: Ranked, ranks: int) -> tuple[int, ...]:
    chosen = each.comm.members if each.comm else each.ranks
    return tuple(sorted(set(chosen))) if chosen is not None else tuple(range(ranks))


def _listed(
    nodes: Sequence[Ranked], ranks: int, listing: dict[int, Sequence[str]]
) -> Iterator[tuple[Ranked, int]]:
    """Every node of every rank, in an order in which each rank finds its own listing."""
    turns: dict[int, Iterator[Ranked]] = {}
    for rank in range(ranks):
        own = [each for each in nodes if rank in _ranks_of(each, ranks)]
        by_name = {each.node.name: each for each in own}
        names = [each.node.name for each in own]
        said = list(listing.get(rank, names))
        if sorted(said) != sorted(names):
            odd = next((n for n in said if n not in names), None)
            problem = (
                f"names {odd!r}, which is not a node of it{did_you_mean(odd, names)}"
                if odd is not None
                else f"must name each of its nodes once: {', '.join(names)}"
            )
            raise GraphError(f"the listing of rank {rank} {problem}.", code="SW-RANK")
        turns[rank] = iter([by_name[n] for n in said])
    if unknown := sorted(set(listing) - set(range(ranks))):
        problem = f"a listing names rank {unknown[0]}; the graph has {ranks}, from 0 on."
        raise GraphError(problem, code="SW-RANK")
    for each in nodes:
        for rank in _ranks_of(each, ranks):
            yield next(turns[rank]), rank


def _at(each: Ranked, rank: int) -> Node:
    """The node of one rank, its names those of that rank."""
    comm = each.comm
    node = each.ends.get(rank, each.node)
    host, device = node.host, node.device
    if comm is not None:
        host, device = _meeting(node, comm, rank, whole=rank not in each.ends)
    return replace(
        node,
        name=at_rank(each.node.name, rank),
        host=tuple(_op_at(op, rank) for op in host),
        device=tuple(_op_at(op, rank) for op in device),
        actor=at_rank(node.actor, rank),
        stream=None if node.stream is None else at_rank(node.stream, rank),
        offset=each.offsets.get(rank, node.offset),
        rank=rank,
        comm=comm,
    )


def _op_at(op: Op, rank: int) -> Op:
    return replace(
        op,
        reads=tuple(Read(at_rank(read.name, rank), read.carry, read.firing) for read in op.reads),
        writes=tuple(at_rank(name, rank) for name in op.writes),
        classes=tuple((at_rank(name, rank), users) for name, users in op.classes),
    )


def _meeting(
    node: Node, comm: Comm, rank: int, *, whole: bool
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """The ops of a comm node on one member: its part, and the states that order the calls.

    `whole`: the node says what both ends of a message touch, not only this one.
    """
    part = node.device[-1] if node.device else node.host[-1]
    if comm.kind == "message" and whole:
        sends = rank == comm.members[0]
        part = replace(part, reads=part.reads if sends else (), writes=() if sends else part.writes)
    if not node.device:
        return _split(part, (comm.communicator,), ()), ()
    launch = replace(node.host[-1], writes=(*node.host[-1].writes, comm.communicator))
    serial = () if comm.concurrent else (DEVICE_STATE,)
    return (launch,), _split(part, (), serial)


def _split(op: Op, entering: tuple[str, ...], leaving: tuple[str, ...]) -> tuple[Op, Op]:
    """The phases of a meeting. What it touches it has until it leaves."""
    enter = Op(writes=entering, phase="enter", cost_us=0.0)
    return enter, replace(op, writes=(*op.writes, *leaving), phase="leave")


def part_of(graph: StepGraph, rank: int) -> StepGraph:
    """The nodes and data of one rank. Its comm nodes know of the others, and wait for none."""
    nodes = tuple(node for node in graph.nodes if node.rank == rank)
    touched = _touched(nodes, rank)
    return replace(
        graph,
        nodes=nodes,
        values={name: value for name, value in graph.values.items() if name in touched},
        states={name: state for name, state in graph.states.items() if name in touched},
        ranks=(rank,),
    )


def without_ranks(graph: StepGraph) -> StepGraph:
    """The graph of one rank with the names that were declared. Its nodes still say their rank."""

    def plain(name: str) -> str:
        return declared_name(graph, name)

    def op(each: Op) -> Op:
        return replace(
            each,
            reads=tuple(Read(plain(read.name), read.carry) for read in each.reads),
            writes=tuple(map(plain, each.writes)),
            classes=tuple((plain(name), users) for name, users in each.classes),
        )

    nodes = (
        replace(
            node,
            name=plain(node.name),
            host=tuple(map(op, node.host)),
            device=tuple(map(op, node.device)),
            actor=plain(node.actor),
            stream=None if node.stream is None else plain(node.stream),
        )
        for node in graph.nodes
    )
    return replace(
        graph,
        nodes=tuple(nodes),
        values={plain(n): replace(value, name=plain(n)) for n, value in graph.values.items()},
        states={plain(n): replace(state, name=plain(n)) for n, state in graph.states.items()},
    )


def ends(graph: StepGraph) -> dict[str, dict[int, Node]]:
    """The ends of each comm node by its rank."""
    found: dict[str, dict[int, Node]] = {}
    for node in graph.nodes:
        if node.comm is not None:
            found.setdefault(node.comm.name, {})[node.rank or 0] = node
    return found
