"""Keys that change hands in the explorer, also in a step before that of their old users."""

from dataclasses import replace

import pytest

from stepweave.graph.planner.compile import compile_plan
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
