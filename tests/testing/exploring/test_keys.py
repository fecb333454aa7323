"""Keys that change hands in the explorer, also in a step before that of their old users."""

from dataclasses import replace

import pytest

from stepweave.graph.node import OWNER, Node, Op, Read, State, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.exploring.campaign import by_explorer
from stepweave.testing.keyed_graphs import random_keyed_graph


@pytest.mark.parametrize(("seed", "least"), [(5, 0), (22, -2)])
def test_a_lease_of_no_step_or_less_is_explored_as_others_are(seed: int, least: int) -> None:
    plan = compile_plan(random_keyed_graph(seed))
    assert min(lease.steps for lease in plan.leases) == least
    assert not by_explorer(plan, range(4))
    for index, lease in enumerate(plan.leases):
        if lease.steps <= 0:
            sooner = replace(lease, steps=lease.steps - 1)
            leases = (*plan.leases[:index], sooner, *plan.leases[index + 1 :])
            assert by_explorer(replace(plan, leases=leases), range(6)), lease


def test_a_lease_of_many_steps_is_explored_in_a_run_that_is_longer() -> None:
    """Seven nodes in a row, each a step behind: the last has a key seven steps after the first."""
    first = Node("n0", (Op((), ("v0", "kv"), classes=(("kv", "swap"),)),), actor="t0")
    between = [
        Node(f"n{i}", (Op((Read(f"v{i - 1}", 1),), (f"v{i}",)),), actor=f"t{i}")
        for i in range(1, 7)
    ]
    last = Node("n7", (Op((Read("v6", 1),), ("kv",), classes=(("kv", OWNER),)),), actor="t7")
    values = [Value(f"v{i}") for i in range(7)]
    states = [State("kv", keys="blocks")]
    plan = compile_plan(StepGraph.build([first, *between, last], values, states, order="keep"))
    assert not by_explorer(plan, range(4))
    [index] = [i for i, lease in enumerate(plan.leases) if lease.steps == 7]
    sooner = replace(plan.leases[index], steps=6)
    leases = (*plan.leases[:index], sooner, *plan.leases[index + 1 :])
    assert by_explorer(replace(plan, leases=leases), range(4))
