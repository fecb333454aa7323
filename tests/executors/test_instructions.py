"""Plans as programs: the text, and how far the padding goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave.executors.instructions import Program
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import plan_edges
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.graphs import random_step_graph


def three_actors(*waits: Wait) -> Plan:
    nodes = [Node(name, actor=name.upper()) for name in ("u", "v", "w")]
    return replace(compile_plan(StepGraph.build(nodes, [])), waits=waits)


def test_a_program_reads_like_what_each_actor_does() -> None:
    nodes = [
        Node("schedule", (Op((Read("tokens", 1),), ("batch",)),)),
        Node("forward", (Op((Read("batch"),)),), (Op((), ("sampled",)),), stream="compute"),
        Node("copy", (Op(),), (Op((Read("sampled"),), ("tokens",)),), stream="copy"),
    ]
    values = [Value("batch"), Value("sampled", "device"), Value("tokens", "pinned")]
    values = [replace(v, storage=Value.default_storage(v.place, None)) for v in values]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    assert str(Program.of(plan)) == (
        "driver\n"
        "  wait   copy.device@-1\n"
        "  run    schedule.host\n"
        "  run    forward.host\n"
        "  launch forward.device on compute\n"
        "  run    copy.host\n"
        "  launch copy.device on copy\n"
        "compute\n"
        "  run    forward.device\n"
        "  record forward.device\n"
        "copy\n"
        "  wait   forward.device@+0\n"
        "  run    copy.device\n"
        "  record copy.device"
    )


def test_padding_goes_as_far_back_as_the_lowest_path() -> None:
    forward = three_actors(Wait("u.host", "v.host", 0), Wait("v.host", "w.host", 2))
    assert Program.of(forward).padding == 0
    back = three_actors(Wait("u.host", "v.host", -1), Wait("v.host", "w.host", -2))
    assert Program.of(back).padding == 3
    there_and_back = three_actors(Wait("u.host", "v.host", 2), Wait("v.host", "w.host", -1))
    assert Program.of(there_and_back).padding == 1


def test_padding_covers_every_path_that_orders_two_ops() -> None:
    """By brute force: unroll plans with the padding, and with far more; the same order results."""
    unrolled = 0
    for seed in range(120):
        try:
            plan = compile_plan(random_step_graph(seed, most_nodes=5))
        except GraphError:
            continue
        steps = 3
        program = Program.of(plan)
        lowest = program.padding
        assert _ordered_pairs(plan, steps, lowest) == _ordered_pairs(plan, steps, lowest + 6)
        unrolled += lowest > 0
    assert unrolled >= 5


def test_less_padding_would_lose_an_order() -> None:
    plan = three_actors(Wait("u.host", "v.host", -1), Wait("v.host", "w.host", 1))
    assert Program.of(plan).padding == 1
    assert _ordered_pairs(plan, 2, 0) < _ordered_pairs(plan, 2, 1) == _ordered_pairs(plan, 2, 9)


def _ordered_pairs(plan: Plan, steps: int, padding: int) -> set[tuple[tuple[str, int], ...]]:
    """Which ops of steps in range are before which, if the padding exists too."""
    ops = list(plan.graph.vertices)
    exists = range(-padding, steps + padding)
    after: dict[tuple[str, int], list[tuple[str, int]]] = {(o, s): [] for o in ops for s in exists}
    for edge in plan_edges(plan):
        for step in exists:
            if step + edge.distance in exists:
                after[edge.source, step].append((edge.target, step + edge.distance))
    pairs: set[tuple[tuple[str, int], ...]] = set()
    for start in ((op, step) for op in ops for step in range(steps)):
        reached: set[tuple[str, int]] = set()
        todo = [start]
        while todo:
            for found in after[todo.pop()]:
                if found not in reached:
                    reached.add(found)
                    todo.append(found)
        pairs |= {(start, end) for end in reached if 0 <= end[1] < steps}
    return pairs


@pytest.mark.parametrize("seed", range(20))
def test_device_ops_have_the_step_of_their_launch(seed: int) -> None:
    try:
        plan = compile_plan(random_step_graph(seed))
    except GraphError:
        return
    tasks = Program.of(plan).tasks
    for op, task in tasks.items():
        for launched in task.launches:
            assert tasks[launched].offset == task.offset, f"{op} launches {launched}"
