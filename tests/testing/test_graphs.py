"""The random graphs are valid, repeatable and varied enough to be worth testing with."""

from __future__ import annotations

from stepweave.graph.errors import DeadlockError
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.validate import validate
from stepweave.testing.graphs import random_step_graph


def test_the_same_seed_gives_the_same_graph() -> None:
    assert random_step_graph(7) == random_step_graph(7)
    assert random_step_graph(7) != random_step_graph(8)


def test_every_random_graph_is_valid() -> None:
    for seed in range(200):
        validate(random_step_graph(seed))


def test_random_graphs_cover_what_a_graph_can_declare() -> None:
    seen: set[str] = set()
    for seed in range(60):
        graph = random_step_graph(seed)
        for vertex in graph.vertices.values():
            seen |= {f"{vertex.side} op", f"thread {vertex.node.actor}"}
            seen |= {f"offset {vertex.offset}"} | ({"phase"} if vertex.op.phase else set())
            seen |= {f"carry {read.carry}" for read in vertex.op.reads}
            seen |= {"state" for name in vertex.op.writes if name in graph.states}
        for value in graph.values.values():
            pinned = "derived" if value.slots is None else "given"
            seen.add(value.storage if value.storage == "fresh" else f"{pinned} slots")
            seen.add(value.place)
        try:
            compile_plan(graph)
            seen.add("plan")
        except DeadlockError:
            seen.add("deadlock")
    assert seen >= {
        *("host op", "device op", "thread driver", "thread helper", "phase", "state"),
        *("offset -1", "offset 0", "offset 1", "offset 2", "carry 0", "carry 1", "carry 2"),
        *("fresh", "derived slots", "given slots", "host", "pinned", "device"),
        *("plan", "deadlock"),
    }
