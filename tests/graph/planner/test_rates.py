"""Nodes with rates: plans, the verifier and executors, against the plain loop firing by firing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from stepweave.cli.planned import planned as planned_config
from stepweave.executors.capture import Captures
from stepweave.executors.errors import NodeFailure
from stepweave.executors.run import Executor, run
from stepweave.graph.answers.folding import folded, rate_words
from stepweave.graph.answers.leases import leases_in_words
from stepweave.graph.errors import DeadlockError, GraphError, StepweaveError
from stepweave.graph.modes import Mode
from stepweave.graph.node import Node, Op, OpContext, Read, State, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.leases import pool_leases
from stepweave.graph.planner.segments import segments
from stepweave.graph.ranks import Ranked, ranked_graph
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import violations
from stepweave.testing.checking.mode import Strict
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.exploring.nodes import Interleaved
from stepweave.testing.rated_graphs import random_rated_graph

from ..oracle import Instance, Order, Unrolled, padding_for
from ..rated_oracle import (
    can_be_ordered,
    plain_loop,
    recording,
    steps_of_cycle,
    unordered,
)

NIGHTLY = 3000


def planned(seed: int) -> Plan | None:
    """The plan of a random graph, or None where the plain loop allows no order either."""
    graph = random_rated_graph(Random(seed))
    orderable = can_be_ordered(graph)
    try:
        plan = compile_plan(graph)
    except DeadlockError:
        assert not orderable, f"seed {seed}: refused, and could be ordered"
        return None
    assert orderable, f"seed {seed}: planned, and cannot be ordered"
    return plan if plan.graph.declared is not None else None


def judge(seed: int) -> bool:
    """Planner, verifier and oracle agree on a random graph and on all its mutants."""
    plan = planned(seed)
    if plan is None:
        return False
    assert not violations(plan), f"seed {seed}: {violations(plan)[0]}"
    assert not unordered(plan), f"seed {seed}: {unordered(plan)[:2]}"
    bounds = {(edge.source, edge.target) for edge in plan.edges if edge.hazard == "BOUND"}
    for wait in plan.waits:
        less = replace(plan, waits=tuple(other for other in plan.waits if other is not wait))
        assert violations(less), f"seed {seed}: the verifier misses {wait}"
        if (wait.source, wait.target) not in bounds:
            assert unordered(less), f"seed {seed}: {wait} is needless"
    for what, mutant in doctored(plan):
        assert violations(mutant), f"seed {seed}: the verifier misses {what}"
    return True


def doctored(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with one rate, firing, version or turn changed, declared or unrolled."""
    graph = plan.graph
    assert graph.declared is not None
    for place, node in enumerate(graph.declared.nodes):
        for other in (
            replace(node, rate=node.rate + 1),
            replace(node, every=node.every + 1),
            replace(node, every=node.every * 2, first=node.first),
            replace(node, first=node.first + 1),
        ):
            nodes = (*graph.declared.nodes[:place], other, *graph.declared.nodes[place + 1 :])
            if other.first < other.every:
                declared = replace(graph.declared, nodes=nodes)
                yield f"{other}", replace(plan, graph=replace(graph, declared=declared))
    for place, node in enumerate(graph.nodes):
        rest = (*graph.nodes[:place], *graph.nodes[place + 1 :])
        yield f"without {node.name}", replace(plan, graph=replace(graph, nodes=rest))
        for op in (node.device or node.host)[-1:]:
            for read in op.reads:
                if read.name in graph.states:
                    continue
                later = replace(read, carry=read.carry + 1)
                reads = tuple(later if each == read else each for each in op.reads)
                if len(set(reads)) == len(op.reads):
                    changed = _with_last_op(node, replace(op, reads=reads))
                    nodes = (*graph.nodes[:place], changed, *graph.nodes[place + 1 :])
                    yield (
                        f"{node.name} reads {later}",
                        replace(plan, graph=replace(graph, nodes=nodes)),
                    )
    for name, value in graph.values.items():
        if value.turn is not None:
            values = {**graph.values, name: replace(value, turn=None)}
            yield f"{name} out of turn", replace(plan, graph=replace(graph, values=values))


def _with_last_op(node: Node, op: Op) -> Node:
    if node.device:
        return replace(node, device=(*node.device[:-1], op))
    return replace(node, host=(*node.host[:-1], op))


def test_plans_order_what_the_plain_loop_orders_and_no_wait_or_rate_is_idle() -> None:
    assert sum(judge(seed) for seed in range(1, 6)) >= 2


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_plans_of_many_rated_graphs_are_sound_and_have_no_needless_wait() -> None:
    assert sum(judge(seed) for seed in range(NIGHTLY)) >= NIGHTLY // 3


def fewer_slots(plan: Plan) -> Iterator[Plan]:
    assert plan.graph.declared is not None
    for name in plan.graph.declared.values:
        mine = {k: n for k, n in plan.slots.items() if k.partition("#")[0] == name}
        if all(count is not None and count > 1 for count in mine.values()):
            less = {each: (count or 0) - 1 for each, count in mine.items()}
            yield replace(plan, slots={**plan.slots, **less})


def agree_on_fewer_slots(seed: int) -> int:
    plan = planned(seed)
    killed = 0
    for mutant in fewer_slots(plan) if plan else ():
        races = [each for each in violations(mutant) if each.hazard in ("WAR", "WAW", "RAW")]
        races = [each for each in races if each.code != "SW-WITNESS"]
        assert bool(races) == bool(unordered(mutant)), f"seed {seed}: {mutant.slots}"
        killed += bool(races)
    return killed


def test_one_slot_less_is_a_race_exactly_if_the_plain_loop_has_one() -> None:
    assert sum(agree_on_fewer_slots(seed) for seed in range(4, 8)) >= 1


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_one_slot_less_is_a_race_exactly_if_the_plain_loop_has_one_on_many_graphs() -> None:
    assert sum(agree_on_fewer_slots(seed) for seed in range(NIGHTLY // 3)) >= NIGHTLY // 6


def runs_alike(seed: int) -> bool:
    graph = recording(random_rated_graph(Random(seed)))
    try:
        plan = compile_plan(graph)
    except DeadlockError:
        return False
    steps = 3 * steps_of_cycle(graph)
    versions, logs = plain_loop(graph, steps)
    executors: tuple[str | Executor, ...] = (
        *("serial", "threads", Strict(), Interleaved(seed)),
        *(Deferred(seed), Strict(Deferred(seed + 1))),  # the streams of a device that works late
    )
    for executor in executors:
        states: dict[str, list[object]] = {state: [] for state in graph.states}
        report = run(plan, executor=executor, steps=steps, states=states, keep=list(versions))
        assert (report.steps, states) == (steps, logs), f"seed {seed}, {executor}"
        assert {k: list(v) for k, v in report.kept.items()} == versions, f"seed {seed}, {executor}"
    return True


def test_every_executor_gives_what_the_plain_loop_gives() -> None:
    assert sum(runs_alike(seed) for seed in range(8)) >= 3


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_executor_gives_what_the_plain_loop_gives_on_many_graphs() -> None:
    assert sum(runs_alike(seed) for seed in range(NIGHTLY)) >= NIGHTLY // 3


def test_segments_of_graphs_with_rates_are_not_captured() -> None:
    plan = planned_config("draft_passes")
    assert segments(plan)
    assert Captures(plan).of(plan).segments == ()


def passes() -> StepGraph:
    """A step, three passes of two nodes in a loop, and a node that fires in steps 1, 3, 5, …"""
    return StepGraph.build(
        [
            Node("begin", (Op(writes=("token",)),)),
            Node("draft", (Op((Read("token"), Read("picked", 1)), ("scores",)),), rate=3),
            Node("pick", (Op((Read("scores"),), ("picked",)),), rate=3),
            Node("count", (Op((Read("picked"), Read("count", 1)), ("count",)),), every=2, first=1),
            Node("end", (Op((Read("picked", 0, 0), Read("picked", 1), Read("count"))),)),
        ],
        [Value(name, slots=5, storage="slots") for name in ("token", "scores", "picked", "count")],
        order="keep",
    )


def test_nodes_of_one_rate_that_are_listed_together_take_turns() -> None:
    (program,) = compile_plan(passes()).actors.values()
    step = ["begin#{}", "draft#{}", "pick#{}", "draft#{}", "pick#{}", "draft#{}", "pick#{}"]
    numbers = [0, 0, 0, 1, 1, 2, 2, 1, 3, 3, 4, 4, 5, 5]
    names = [name.format(number) for name, number in zip(step * 2, numbers, strict=True)]
    names = [*names[:7], "end#0", *names[7:], "count", "end#1"]
    assert [op for op, _ in program] == [f"{name}.host" for name in names]


def test_a_read_finds_the_newest_version_of_its_step_or_of_so_many_before() -> None:
    graph = compile_plan(passes()).graph
    reads = {name: [str(r) for r in vertex.op.reads] for name, vertex in graph.vertices.items()}
    assert reads["draft#0.host"] == ["token#0", "picked#5@-1"]
    assert reads["draft#4.host"] == ["token#1", "picked#3"]
    assert reads["count.host"] == ["picked#5", "count@-1"]
    assert reads["end#0.host"] == ["picked#0", "picked#5@-1", "count@-1"]
    assert reads["end#1.host"] == ["picked#3", "picked#2", "count"]


def test_firings_share_the_slots_of_their_value() -> None:
    plan = compile_plan(passes())
    assert plan.declared_slots == dict.fromkeys(("token", "scores", "picked", "count"), 5)
    overwrites = {(e.source, e.target): e.distance for e in plan.edges if e.hazard == "WAW"}
    assert overwrites["draft#0.host", "draft#5.host"] == 0
    assert overwrites["draft#1.host", "draft#0.host"] == 1
    assert overwrites["begin#0.host", "begin#1.host"] == 2
    assert overwrites["count.host", "count.host"] == 5


def one(**changes: int) -> StepGraph:
    node = Node("only", (Op((Read("x", 1),), ("x",)),))
    return StepGraph.build([replace(node, **changes)], [Value("x")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [{"rate": 0}, {"every": 65}, {"every": 2, "first": 2}, {"rate": 2, "every": 2}, {"first": 1}],
)
def test_rates_that_make_no_sense_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(GraphError) as caught:
        one(**changes)
    assert caught.value.code == "SW-RATE"


def test_rates_that_recur_too_seldom_are_refused() -> None:
    nodes = [Node(f"n{every}", every=every) for every in (3, 5, 7)]
    with pytest.raises(GraphError, match="recur after 105 steps with 71 firings") as caught:
        StepGraph.build(nodes, [])
    assert caught.value.code == "SW-RATE"


def swapped(*leases: tuple[str, str, int]) -> StepGraph:
    """Blocks that every step works on, and that every third step copies, on another stream."""
    copy = Op((Read("kv"),), ("kv",), classes=(("kv", "swap"),))
    return StepGraph.build(
        [
            Node("work", (Op(),), (Op((Read("kv"),), ("kv",)),), stream="compute"),
            Node("swap", (Op(),), (copy,), stream="copy", every=3, first=1),
        ],
        [],
        [State("kv", keys="blocks", leases=leases)],
        order="keep",
    )


def safe(plan: Plan, users: tuple[str, str], steps: int) -> bool:
    """Whether a key may pass after so many steps, whichever step its old users were in last."""
    order = Order(Unrolled(plan, 12, padding_for(plan)))
    ops = plan.graph.vertices.items()
    old, new = (
        [(op, v) for op, v in ops if v.op.writes and v.op.class_of("kv") == each] for each in users
    )
    for last in range(12, 12 + plan.graph.cycle):
        for (before, u), (after, v) in product(old, new):
            fires = [each.node.firing for each in (u, v)]
            assert fires[0] is not None
            assert fires[1] is not None
            i = (last - fires[0].step) // plan.graph.cycle
            j = -((fires[1].step - last - steps) // plan.graph.cycle)
            serial = (i + u.offset, u.position) < (j + v.offset, v.position)
            if not (serial and order.before(Instance(before, i), Instance(after, j))):
                return False
    return True


def test_a_lease_counts_whole_cycles_where_nodes_have_rates() -> None:
    plan = compile_plan(swapped())
    leases = pool_leases(plan, "blocks")
    assert leases.keys() == set(product(("owner", "swap"), repeat=2))
    for users, steps in leases.items():
        assert steps % 3 == 0
        assert safe(plan, users, steps)
        assert not safe(plan, users, steps - 3)
    said = leases[("owner", "swap")]
    assert f"kv: owner → swap after {said} steps" in leases_in_words(plan)


def test_a_lease_of_so_many_steps_cannot_be_pinned_where_nodes_have_rates() -> None:
    with pytest.raises(GraphError, match="state 'kv' has pinned leases") as caught:
        swapped(("owner", "swap", 4))
    assert caught.value.code == "SW-RATE"


def test_rates_together_with_what_they_cannot_have_yet_are_refused_by_name() -> None:
    node = Node("only", (Op((Read("x", 1),), ("x",)),), rate=2)
    buffers = Value("x", "pinned", "slots", allocate=lambda: [0])
    with pytest.raises(GraphError, match=r"value 'x' has buffers of its own") as caught:
        StepGraph.build([node], [buffers])
    assert caught.value.code == "SW-RATE"
    with pytest.raises(GraphError, match="whose nodes have rates cannot have modes") as caught:
        StepGraph.build([node], [Value("x")], modes=[Mode("decode")])
    assert caught.value.code == "SW-MODE"


@pytest.mark.parametrize("change", [{"rate": 2}, {"every": 2}])
def test_a_rate_in_a_graph_of_several_ranks_is_refused_by_name(change: dict[str, int]) -> None:
    node = Node("a", (Op(),))
    assert ranked_graph([Ranked(node)], [], ranks=2).ranks == (0, 1)
    rated = Ranked(replace(node, **change))  # type: ignore[arg-type]
    with pytest.raises(
        GraphError, match="'a@0' has a rate, which a graph of several ranks"
    ) as caught:
        ranked_graph([rated], [], ranks=2)
    assert caught.value.code == "SW-RATE"


@pytest.mark.parametrize("firing", [0, 3])
def test_a_firing_that_there_is_not_cannot_be_read(firing: int) -> None:
    writer = Node("writer", (Op(writes=("x",)),), rate=3 if firing else 1)
    reader = Node("reader", (Op((Read("x", 0, firing),)),))
    with pytest.raises(GraphError, match="fire") as caught:
        StepGraph.build([writer, reader], [Value("x")])
    assert caught.value.code == "SW-RATE"


def test_a_run_has_whole_cycles() -> None:
    plan = compile_plan(recording(passes()))
    with pytest.raises(StepweaveError, match="recur after 2 steps") as caught:
        run(plan, steps=3)
    assert caught.value.code == "SW-RATE"
    assert run(plan, steps=4, keep=["count"]).steps == 4
    with pytest.raises(StepweaveError, match="did you mean 'count'"):
        run(plan, steps=4, keep=["cuont"])


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_failure_is_told_with_the_step_that_the_op_saw(executor: str) -> None:
    seen: list[int] = []

    def seldom(ctx: OpContext) -> None:
        seen.append(ctx.step)
        if len(seen) == 3:
            raise ValueError(f"in {ctx.step}")

    def plain(ctx: OpContext) -> None:
        ctx.write("number", ctx.step)

    nodes = [
        Node("each", (Op(writes=("number",), run=plain),)),
        Node("seldom", (Op((Read("number"), Read("setting")), run=seldom),), every=4, first=1),
    ]
    values = [Value("number"), Value("setting", external=True, initial="as given")]
    plan = compile_plan(StepGraph.build(nodes, values))
    told: list[NodeFailure] = []
    with pytest.raises(NodeFailure, match="failed in step 9: ValueError: in 9") as caught:
        run(plan, executor=executor, steps=16, on_failure=told.append)
    assert caught.value.step == 9
    assert {each.step for each in told} <= {9}
    assert (
        run(plan, executor=executor, steps=8, keep=["setting"]).kept["setting"] == ["as given"] * 8
    )


def test_costs_and_slots_are_given_by_declared_name_or_by_firing() -> None:
    plan = compile_plan(
        passes(), costs={"draft.host": 7.0, "draft#1.host": 9.0}, slots={"picked": 6}
    )
    assert [plan.costs[f"draft#{k}.host"] for k in range(3)] == [7.0, 9.0, 7.0]
    assert plan.declared_slots["picked"] == 6
    with pytest.raises(GraphError, match="no op 'draft'"):
        compile_plan(passes(), costs={"draft": 1.0})


def test_a_plan_folds_back_to_the_declared_nodes_with_distances_in_steps() -> None:
    picture = folded(compile_plan(passes()))
    assert [node.name for node in picture.graph.nodes] == ["begin", "draft", "pick", "count", "end"]
    raw = {(e.source, e.target, e.distance) for e in picture.edges if e.hazard == "RAW"}
    assert ("pick.host", "end.host", 1) in raw
    assert ("count.host", "end.host", 0) in raw
    assert [rate_words(node) for node in picture.graph.nodes] == [
        "",
        "3 times a step",
        "3 times a step",
        "every 2 steps",
        "",
    ]


def test_a_plan_without_rates_is_what_it_was() -> None:
    plan = compile_plan(one())
    assert (plan.graph.declared, plan.graph.cycle, folded(plan)) == (None, 1, plan)
    assert "cycle" not in plan.to_json()
    assert plan.step_us == plan.period_us
