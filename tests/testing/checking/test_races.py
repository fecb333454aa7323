"""Checking mode finds a race in a run that went well, and none where the plan orders everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepweave.cli.planned import planned
from stepweave.configs.load import shipped
from stepweave.executors import NodeFailure, run
from stepweave.executors.errors import ContractViolation
from stepweave.executors.run import Executor
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.bounds import is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import plan_edges
from stepweave.graph.planner.paths import adjacency, closure, within
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.checking.clocks import Clocks
from stepweave.testing.checking.mode import Strict
from stepweave.testing.exploring.nodes import Interleaved
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.unverified import Unverified, run_unverified
from tests.device.pipelines import DRAFTERS, requests, served, tiny_on
from tests.executors.tensors import Sums, plain, summing
from tests.graph.shipped_plans import GRAPHS

STEPS = 12  # so that versions come round in every slot


def bare(plan: Plan) -> Plan:
    """The plan of the same declarations, for ops that make their data anew."""
    values = {n: replace(v, allocate=None, initial=None) for n, v in plan.graph.values.items()}
    return replace(plan, graph=replace(plan.graph, values=values))


def race(plan: Plan, executor: Executor | str = "serial") -> ContractViolation | None:
    """What one run, whose data are right, tells."""
    sums = Sums.of(plan.graph)
    graph = summing(plan.graph, sums, plain)
    try:
        given = RunArguments(steps=STEPS, states=sums.states)
        run_unverified(replace(plan, graph=graph), Strict(executor), given)
    except NodeFailure as failure:
        cause = failure.__cause__
        assert isinstance(cause, ContractViolation)
        return cause
    return None


def broken(plan: Plan) -> Iterator[Plan]:
    """The plan without each of its waits, and with each a step too weak.

    A bound on running ahead is left: it orders no access, so no race shows that it is lost. So is
    what keeps a lease alone: nodes without their work share no keys.
    """
    for number, wait in enumerate(plan.waits):
        if is_bound(wait) or all(each.hazard == "LEASE" for each in wait.protects):
            continue
        others = (*plan.waits[:number], *plan.waits[number + 1 :])
        yield replace(plan, waits=others)
        yield replace(plan, waits=(*others, replace(wait, distance=wait.distance + 1)))


def one_lucky_run_shows_each_lost_wait(plan: Plan) -> int:
    for executor in ("serial", Interleaved(3)):
        assert race(plan, executor) is None
    count = 0
    for mutant in broken(plan):
        found = race(mutant)
        assert found is not None, [str(wait) for wait in mutant.waits]
        assert found.code == "SW-RACE"
        count += 1
    return count


SOME = ("abstract_decode", "async_eagle3_grammar", "drafter_stream", "grammar_worker")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SOME)
def test_a_lucky_run_of_a_shipped_plan_shows_each_lost_wait(name: str) -> None:
    assert one_lucky_run_shows_each_lost_wait(bare(planned(name))) >= 4


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in shipped() if name not in (*SOME, *GRAPHS)])
@pytest.mark.parametrize("depth", ["1", "2", "3"])
def test_a_lucky_run_of_any_shipped_plan_shows_each_lost_wait(name: str, depth: str) -> None:
    assert one_lucky_run_shows_each_lost_wait(bare(planned(name, {"depth": depth}))) >= 2


def random_plans(seeds: range) -> Iterator[Plan]:
    for seed in seeds:
        try:
            yield bare(compile_plan(random_step_graph(seed)))
        except StepweaveError:
            continue


def test_a_lucky_run_of_a_random_plan_shows_each_lost_wait() -> None:
    assert sum(map(one_lucky_run_shows_each_lost_wait, random_plans(range(8)))) >= 15


@pytest.mark.nightly
def test_a_lucky_run_of_many_random_plans_shows_each_lost_wait() -> None:
    assert sum(map(one_lucky_run_shows_each_lost_wait, random_plans(range(14, 300)))) >= 500


def test_an_op_that_writes_over_what_it_reads_is_told() -> None:
    plan = bare(planned("async_eagle3_grammar"))
    assert plan.slots["progress"] == 2
    found = race(replace(plan, slots={**plan.slots, "progress": 1}))
    assert found is not None
    assert (found.code, found.value) == ("SW-RACE", "progress")


def test_a_real_pipeline_without_a_wait_is_told_in_one_serial_run() -> None:
    """The nodes' own code, on the one executor under which nothing can go wrong."""
    config = replace(DRAFTERS["eagle3"], structured=True)
    engine = tiny_on(torch.device("cpu"), config, Strict())
    waits = engine.plan.waits
    assert served(engine, requests(True)[:2])
    for number in range(len(waits)):
        engine = tiny_on(torch.device("cpu"), config, "serial")
        lost = (*waits[:number], *waits[number + 1 :])
        engine.executor = Unverified(replace(engine.plan, waits=lost), Strict())
        with pytest.raises(NodeFailure, match="SW-RACE"):
            served(engine, requests(True)[:2])


# --- memory that the plan knows nothing of ---


def pair(make: Run, look: Run, *values: Value, reads: tuple[Read, ...] = ()) -> Plan:
    """Two ops on threads of their own, and what the one reads of the other."""
    nodes = [
        Node("make", (Op((), tuple(v.name for v in values), run=make),)),
        Node("look", (Op(reads, (), run=look),), actor="other"),
    ]
    return compile_plan(StepGraph.build(nodes, values, order="keep"))


def told(plan: Plan, value: str, *words: str) -> ContractViolation:
    with pytest.raises(NodeFailure) as caught:
        run(plan, executor=Strict(), steps=6)
    found = caught.value.__cause__
    assert isinstance(found, ContractViolation)
    assert (found.code, found.value) == ("SW-RACE", value), str(found)
    for word in words:
        assert word in str(found)
    return found


@dataclass(frozen=True)
class Record:
    of: Any


FILLED: dict[str, tuple[Callable[[], Any], Callable[[Any, int], object]]] = {
    "inference tensor": (
        lambda: torch.inference_mode()(torch.zeros)(1),
        lambda t, step: torch.inference_mode()(t.fill_)(step),
    ),
    "array": (lambda: np.zeros(1), lambda held, step: held.fill(step)),
    "an array in a record": (lambda: Record(np.zeros(1)), lambda held, step: held.of.fill(step)),
}


@pytest.mark.parametrize("kind", FILLED)
def test_a_constant_that_is_published_and_filled_again_is_told(kind: str) -> None:
    """By the serial executor, under which each reader is done before the next fill."""
    make_constant, fill = FILLED[kind]
    constant = make_constant()

    def make(ctx: OpContext) -> None:
        fill(constant, ctx.step)
        ctx.write("v", constant)

    plan = pair(make, lambda ctx: ctx.read("v"), Value("v"), reads=(Read("v"),))
    found = told(plan, "v", "op 'look.host' reads in step 0", "the plan orders neither")
    assert (found.node, found.op, found.step) == ("make", "make.host", 1)
    assert found.file == __file__
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[(found.source_line or 0) - 1]
    assert "fill" in line or 'ctx.write("v", constant)' in line


def test_two_values_that_share_an_object_which_changes_are_told() -> None:
    shared = np.zeros(1)

    def make(ctx: OpContext) -> None:
        if ctx.step % 2 == 0:
            shared[0] = ctx.step
        ctx.write("v", shared)
        ctx.write("w", (shared, ctx.step))

    reads = (Read("v"), Read("w"))
    told(pair(make, lambda ctx: ctx.read("w"), Value("v"), Value("w"), reads=reads), "v")


def test_memory_that_two_ops_share_behind_the_plans_back_is_told() -> None:
    scratch = torch.zeros(4)

    def make(ctx: OpContext) -> None:
        scratch.add_(1)

    def look(ctx: OpContext) -> None:
        scratch.sum()

    found = told(pair(make, look), "", "memory that is no value's and no state's")
    assert found.op == "look.host"


def test_an_array_over_a_tensor_that_a_state_got_later_is_no_value() -> None:
    """It was not the state's when the run began, so only checking mode sees it."""

    def make(ctx: OpContext) -> None:
        kv = ctx.state("kv")
        with torch.inference_mode():
            if not kv:
                kv.append(torch.zeros(1))
            kv[0].add_(1)
            ctx.write("v", kv[0].numpy())

    def look(ctx: OpContext) -> None:
        ctx.read("v")

    nodes = [
        Node("make", (Op((Read("kv"),), ("v", "kv"), run=make),)),
        Node("look", (Op((Read("v"),), run=look),), actor="other"),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("v")], ("kv",), order="keep"))
    with pytest.raises(NodeFailure, match=r"SW-SHARED-MEMORY.*publishes as v memory of 'kv'"):
        run(plan, executor=Strict(), steps=4, states={"kv": []})


@pytest.mark.parametrize("kind", FILLED)
def test_what_is_new_in_each_step_and_what_never_changes_is_no_race(kind: str) -> None:
    make_constant, fill = FILLED[kind]
    constant = make_constant()

    def make(ctx: OpContext) -> None:
        fresh = make_constant()
        fill(fresh, ctx.step)
        ctx.write("v", fresh)
        ctx.write("w", constant)

    reads = (Read("v"), Read("w"))
    plan = pair(make, lambda ctx: ctx.read("w"), Value("v"), Value("w"), reads=reads)
    run(plan, executor=Strict(), steps=40)


# --- the clocks ---


def test_clocks_of_sound_plans_are_the_shortest_paths() -> None:
    for plan in random_plans(range(40)):
        ops = list(plan.graph.vertices)
        index = {name: number for number, name in enumerate(ops)}
        edges = [(index[u], index[v], d) for u, v, d, _ in plan_edges(plan)]
        paths, clocks = closure(adjacency(len(ops), edges)), Clocks(plan)
        for u in ops:
            for v in ops:
                for apart in range(-4, 5):
                    ordered = within(paths, index[u], index[v], apart)
                    assert clocks.before(u, 5, v, 5 + apart) == ordered


def test_a_wait_for_an_event_that_is_not_recorded_yet_orders_nothing() -> None:
    """Its launch comes first: the stream finds no record and goes on."""
    nodes = [
        Node("late", (Op(),), (Op((Read("x", 1),)),), stream="a"),
        Node("make", (Op(),), (Op(writes=("x",)),), stream="b"),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", "device")], order="keep"))
    assert Clocks(plan).before("make.device", 0, "late.device", 1)
    early = replace(plan, waits=(Wait("make.device", "late.device", 0, ()),))
    assert not Clocks(early).before("make.device", 0, "late.device", 0)
    assert Clocks(early).before("late.host", 0, "make.device", 0)
