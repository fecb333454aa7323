"""Graphs of several ranks in a few words, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from stepweave.graph.node import Comm, Node, Op, Value
from stepweave.graph.ranks import Ranked, ranked_graph
from stepweave.graph.step_graph import StepGraph
from tests.graph.build import device, host, op, value

NOTHING = Op()


def message(
    name: str,
    ends: tuple[int, int],
    *,
    stream: str | None = None,
    part: Op = NOTHING,
    capacity: int | None = 0,
    on: str | None = None,
    concurrent: bool = False,
    actor: str = "driver",
    offsets: dict[int, int] | None = None,
) -> Ranked:
    node = host(name, part, actor=actor) if stream is None else on_stream(name, part, stream, actor)
    channel = on or f"from_{ends[0]}_to_{ends[1]}"
    comm = Comm(name, "message", ends, channel, capacity, concurrent)
    return Ranked(node, None, comm, offsets or {})


def collective(
    name: str,
    members: Sequence[int],
    *,
    stream: str | None = None,
    part: Op = NOTHING,
    on: str = "world",
    concurrent: bool = False,
    actor: str = "driver",
    offsets: dict[int, int] | None = None,
) -> Ranked:
    node = host(name, part, actor=actor) if stream is None else on_stream(name, part, stream, actor)
    comm = Comm(name, "collective", tuple(members), on, 0, concurrent)
    return Ranked(node, None, comm, offsets or {})


def on_stream(name: str, part: Op, stream: str, actor: str) -> Node:
    return device(name, Op(), part, stream=stream, actor=actor)


def pipeline(
    stages: Sequence[float],
    groups: int,
    *,
    comm_us: float = 0.0,
    host_us: float = 0.0,
    capacity: int | None = None,
) -> StepGraph:
    """Stages on a rank each, hidden states between them, tokens back to the first.

    Row groups take turns: the first stage of step i uses what the last made of step i - groups.
    """
    last = len(stages) - 1
    back = message(
        "feedback",
        (last, 0),
        stream="compute",
        part=op("tokens", "received", host_us),
        capacity=capacity,
        offsets={0: groups},
    )
    nodes = [back]
    values: list[Value] = [value("tokens", "device"), value("received", "device")]
    for rank, us in enumerate(stages):
        reads = f"received@-{groups}" if rank == 0 else f"hidden{rank - 1}_in"
        writes = "tokens" if rank == last else f"hidden{rank}"
        nodes.append(
            Ranked(on_stream(f"stage{rank}", op(reads, writes, us), "compute", "driver"), (rank,))
        )
        if rank < last:
            part = op(f"hidden{rank}", f"hidden{rank}_in", comm_us)
            nodes.append(message(f"send{rank}", (rank, rank + 1), stream="compute", part=part))
            values += [value(f"hidden{rank}", "device"), value(f"hidden{rank}_in", "device")]
    own = [n.node.name for n in nodes if (n.comm and last in n.comm.members) or n.ranks == (last,)]
    listing = {last: [*(name for name in own if name != "feedback"), "feedback"]}
    return ranked_graph(
        nodes, values, ranks=len(stages), listing=listing, order="keep", name="pipeline"
    )
