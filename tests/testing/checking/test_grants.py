"""Checking mode finds keys that are granted before the plan has their old users behind it."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave import node, run, step_graph
from stepweave.executors import NodeFailure
from stepweave.executors.errors import ContractViolation
from stepweave.graph.node import OpContext, State
from stepweave.graph.parameters import state, update
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.leases import pool_leases
from stepweave.requests.pools import KeyPool, Leases, one_class
from stepweave.testing.checking.grants import Grants
from stepweave.testing.checking.legs import Legs
from stepweave.testing.checking.mode import Strict

STEPS = 9


class Table:
    """Hands out keys to two classes in turn, who have them in one step."""

    def __init__(self, leases: Leases) -> None:
        self.pools = {"buffers": KeyPool(range(4), leases)}

    def granted(self, step: int) -> int | None:
        """A key for this step; None: all of them rest."""
        pool, users = self.pools["buffers"], ("owner", "fill")[step // 4 % 2]
        keys = pool.grant(1, step, users)
        if keys is not None:
            pool.release(keys, step, users=users)
        return None if keys is None else keys[0]


@node(writes="key")
def grant(ctx: OpContext, table: Table = update("table")) -> int | None:
    return table.granted(ctx.step)


@node
def fill(key: int | None, buffers: list[int] = update("buffers", users="fill")) -> None:
    buffers[key or 0] += 1


@node(offset=6)
def show(key: int | None, buffers: list[int] = state("buffers")) -> None:
    assert buffers[key or 0] >= 0


def plan() -> Plan:
    states: list[str | State] = [State("buffers", keys="buffers"), "table"]
    return compile_plan(step_graph(grant, fill, show, states=states, order="keep"))


def served(made: Table) -> Any:
    states = {"buffers": [0] * 4, "table": made}
    return run(plan(), executor=Strict(), steps=STEPS, states=states)


def test_keys_that_are_granted_by_the_leases_of_the_plan_are_in_order() -> None:
    leases = pool_leases(plan(), "buffers")
    # what is shown in step i is shown six iterations later, after what is filled in step i + 6
    assert leases == {("fill", "fill"): 1, ("fill", "owner"): -6, ("owner", "fill"): 7}
    made = Table(leases)
    assert served(made).steps == STEPS
    assert made.pools["buffers"].watch is None


def test_a_grant_that_is_too_early_is_found_though_the_run_went_well() -> None:
    made = Table(one_class(1))
    pool = made.pools["buffers"]
    pool.watch = Grants(Legs(plan()), "buffers").told
    had = pool.grant(4, 0) or []
    pool.release(had, 0)
    for step in (1, 6):
        with pytest.raises(ContractViolation, match="too early") as caught:
            pool.grant(1, step, "fill")
        assert caught.value.code == "SW-KEY"
    assert pool.grant(1, 7, "fill") is not None


def test_the_op_that_is_granted_a_key_too_early_ends_the_run() -> None:
    made = Table({("fill", "fill"): 1, ("owner", "fill"): 2})
    with pytest.raises(NodeFailure) as caught:
        served(made)
    assert getattr(caught.value.__cause__, "code", "") == "SW-KEY"
