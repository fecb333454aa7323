"""Large step graphs that are hard to plan, for tests and benchmarks of the planner."""

from __future__ import annotations

from random import Random

from ..graph.node import Node, Op, Read, Value
from ..graph.step_graph import StepGraph


def chain(nodes: int, *, device_us: float = 1000.0) -> StepGraph:
    """Each node has a stream of its own, and its launch reads what the node before computed.

    As listed, a step takes as long as all nodes together; with a node per step in flight, as long
    as the slowest of them, or as the launches.
    """
    listed, values = [], []
    for k in range(nodes):
        reads = (Read(f"x{k - 1}"),) if k else ()
        launch, work = Op(reads, cost_us=5.0), Op((), (f"x{k}",), cost_us=device_us)
        listed.append(Node(f"n{k}", (launch,), (work,), stream=f"s{k}"))
        values.append(Value(f"x{k}", "pinned", "slots"))
    return StepGraph.build(listed, values, name=f"chain of {nodes}")


def staged_chain(nodes: int) -> StepGraph:
    """Each launch fills a buffer of its own: many values whose slots are to be chosen.

    The nodes take turns on three streams; each reads what the node before computed.
    """
    listed, values = [], []
    for k in range(nodes):
        reads = (Read(f"d{k - 1}"),) if k else ()
        launch = Op((), (f"p{k}",), cost_us=7.0)
        work = Op((Read(f"p{k}"), *reads), (f"d{k}",), cost_us=50.0 + k)
        listed.append(Node(f"n{k}", (launch,), (work,), stream="abc"[k % 3]))
        values += [Value(f"p{k}", "pinned", "slots"), Value(f"d{k}", "device", "slots")]
    return StepGraph.build(listed, values, name=f"staged chain of {nodes}")


def woven(
    nodes: int, *, threads: int = 3, reads: int = 3, states: int = 0, seed: int = 0
) -> StepGraph:
    """Nodes on several threads, half of them with a device part, that read each other's values.

    Reads are of earlier nodes, a quarter of them carried; each node changes one in ten states.
    """
    random = Random(seed)
    listed, values = [], []
    for k in range(nodes):
        thread, on_device = f"t{random.randrange(threads)}", random.random() < 0.5
        chosen = {
            f"v{random.randrange(k)}": random.choice([0, 0, 0, 1]) for _ in range(reads if k else 0)
        }
        changed = tuple(f"s{j}" for j in range(states) if random.random() < 0.1)
        work = Op(
            (*(Read(*each) for each in chosen.items()), *map(Read, changed)),
            (f"v{k}", *changed),
            cost_us=float(random.randrange(5, 200)),
        )
        stream = f"{thread}.{random.randrange(2)}" if on_device else None
        host, device = ((Op(cost_us=5.0),), (work,)) if on_device else ((work,), ())
        listed.append(Node(f"n{k}", host, device, actor=thread, stream=stream))
        values.append(Value(f"v{k}", "pinned", "slots"))
    return StepGraph.build(
        listed, values, [f"s{j}" for j in range(states)], name=f"{nodes} nodes on {threads} threads"
    )
