"""Random step graphs of several ranks that call each other, some in ways that never end."""

from __future__ import annotations

from random import Random

from ..graph.node import Comm, Node, Op
from ..graph.ranks import Ranked, ranked_graph
from ..graph.step_graph import StepGraph

MOST_RANKS, MOST_MEETINGS = 4, 5


def random_ranked_graph(random: Random) -> StepGraph:
    """A graph of two to four ranks, each with its own listing and offsets. `order: keep`.

    Collectives and messages of up to five comm nodes, on the host or on one of two streams, some
    on one communicator, some concurrent. About half of them cannot run.
    """
    ranks = random.randint(2, MOST_RANKS)
    nodes = [_meeting(random, k, ranks) for k in range(random.randint(2, MOST_MEETINGS))]
    nodes += [
        Ranked(Node(f"work{rank}", (Op(cost_us=float(random.randint(1, 9))),)), (rank,))
        for rank in range(ranks)
    ]
    listing = {}
    for rank in range(ranks):
        names = [each.node.name for each in nodes if _is_on(each, rank)]
        if random.random() < 0.4:
            random.shuffle(names)
            listing[rank] = names
    return ranked_graph(nodes, (), ranks=ranks, listing=listing, order="keep", name="ranked")


def _meeting(random: Random, number: int, ranks: int) -> Ranked:
    name = f"meet{number}"
    message = random.random() < 0.6
    members = tuple(random.sample(range(ranks), 2 if message else random.randint(2, ranks)))
    comm = Comm(
        name,
        "message" if message else "collective",
        members,
        f"group{random.randrange(3)}" if random.random() < 0.25 else f"own{number}",
        random.choice((0, 0, 1, 2)) if message else 0,
        concurrent=random.random() < 0.4,
    )
    stream = random.choice((None, "compute", "side"))
    device = () if stream is None else (Op(cost_us=float(random.randint(1, 9))),)
    offsets = {r: random.choice((0, 0, 0, 1, -1, 2)) for r in members if random.random() < 0.4}
    return Ranked(Node(name, (Op(),), device, stream=stream), None, comm, offsets)


def _is_on(each: Ranked, rank: int) -> bool:
    return rank in (each.comm.members if each.comm else each.ranks or ())
