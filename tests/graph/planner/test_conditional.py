"""Waits that depend on modes: planner and verifier against whole words of modes, run by run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from stepweave.executors.errors import NodeFailure
from stepweave.executors.run import Executor, run
from stepweave.graph.answers.modes import mode_periods, word_period
from stepweave.graph.errors import DeadlockError, GraphError
from stepweave.graph.modes import Mode
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Value
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.bounds import is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph, Vertex
from stepweave.graph.verifier.verify import violations
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.keyed_graphs import with_keys
from stepweave.timelines.modes import simulate_word
from tests.graph import key_oracle
from tests.graph.conditions_oracle import races
from tests.graph.shipped_plans import shipped_plan

NIGHTLY = 3000
LENGTH = 7  # steps of a word


def told_graph(seed: int, *, keyed: bool = False) -> StepGraph:
    """A random graph with two or three modes, told by a value that a first node writes.

    `keyed`: its states have keys, which pass between classes of users.
    """
    random, graph = Random(seed), random_step_graph(seed, most_nodes=4)
    if keyed:
        graph = with_keys(graph, Random(seed + 1_000_003))
    nodes = [Node("decide", (Op(writes=("kind",), cost_us=1.0),), offset=random.choice((0, 0, -1)))]
    for node in graph.nodes:
        if random.random() < 0.85:
            first = node.host[0]
            knows = replace(first, reads=(*first.reads, Read("kind")))
            node = replace(node, host=(knows, *node.host[1:]))
        nodes.append(node)
    whole = StepGraph.build(
        nodes, [Value("kind"), *graph.values.values()], graph.states.values(), order="keep"
    )
    return replace(whole, modes=random_modes(random, whole), told_by="kind")


def random_modes(random: Random, graph: StepGraph) -> tuple[Mode, ...]:
    found = []
    for name in ["a", "b", "c"][: random.choice((2, 2, 3))]:
        skips = tuple(n.name for n in graph.nodes if n.name != "decide" and random.random() < 0.3)
        untouched = {}
        for op, vertex in graph.vertices.items():
            states = [n for n in vertex.op.writes if n in graph.states]
            names = dict.fromkeys([*(read.name for read in vertex.op.reads), *states])
            untouched[op] = tuple(n for n in names if n != "kind" and random.random() < 0.3)
        costs = {op: float(random.choice((0, 1, 10, 60))) for op in graph.vertices}
        found.append(Mode(name, costs, skips, untouched=untouched))
    return tuple(found)


def planned(seed: int, *, keyed: bool = False) -> Plan | None:
    try:
        return compile_plan(told_graph(seed, keyed=keyed))
    except DeadlockError:
        return None


def words(plan: Plan, seed: int, number: int) -> list[tuple[str, ...]]:
    """Each mode in all steps, and some drawn words."""
    names, random = [mode.name for mode in plan.graph.modes], Random(seed)
    drawn = [tuple(random.choices(names, k=LENGTH)) for _ in range(number)]
    return [*((name,) * LENGTH for name in names), *drawn]


def changed(plan: Plan, index: int, wait: Wait) -> Plan:
    return replace(plan, waits=(*plan.waits[:index], wait, *plan.waits[index + 1 :]))


def judge(seed: int, number: int = 3, *, keyed: bool = False) -> Counter[str]:
    plan = planned(seed, keyed=keyed)
    if plan is None:
        return Counter(refused=1)
    found = Counter(plans=1)
    assert not violations(plan), f"seed {seed}: {violations(plan)[0]}"
    for word in words(plan, seed, number):
        assert not races(plan, word), f"seed {seed}, {word}: {races(plan, word)[:2]}"
    found += handed_on(plan, seed)
    for index, wait in enumerate(plan.waits):
        names = tuple(mode.name for mode in plan.graph.modes) if wait.modes is None else wait.modes
        found["in some modes"] += wait.modes is not None
        if is_bound(wait):
            continue  # another wait may bound as well, at another distance
        for name in names if len(names) > 1 else ():
            fewer = tuple(other for other in names if other != name)
            found += doctored(plan, index, replace(wait, modes=fewer), seed, number)
    return found


def handed_on(plan: Plan, seed: int) -> Counter[str]:
    """Keys pass as leases say in every mode, and not a step sooner if all waits take place."""
    assert not key_oracle.early(plan.always), f"seed {seed}"
    for index, lease in enumerate(plan.leases):
        shorter = replace(lease, steps=lease.steps - 1)
        leases = (*plan.leases[:index], shorter, *plan.leases[index + 1 :])
        codes = {violation.code for violation in violations(replace(plan, leases=leases))}
        assert codes == {"SW-LEASE"}, f"seed {seed}: {lease}"
    return Counter({"leases": len(plan.leases)})


def doctored(plan: Plan, index: int, wait: Wait, seed: int, number: int) -> Counter[str]:
    """One mode less: the verifier finds it, and so do words of which one goes wrong."""
    mutant = changed(plan, index, wait)
    assert violations(mutant), f"seed {seed}: {wait} is one mode more than needed"
    wrong = any(races(mutant, word) for word in words(plan, seed, number))
    return Counter({"doctored": 1, "seen to go wrong": int(wrong)})


def test_waits_are_left_out_in_no_mode_that_needs_them_and_in_all_others() -> None:
    found = sum((judge(seed) for seed in range(10)), Counter[str]())
    assert found["in some modes"] >= 1
    assert found["doctored"] >= 10
    assert found["seen to go wrong"] >= 3


def test_keys_pass_as_leases_say_whatever_the_modes_of_steps_are() -> None:
    found = sum((judge(seed, 1, keyed=True) for seed in (1, 14, 15, 16)), Counter[str]())
    assert found["leases"] >= 10
    assert found["in some modes"] >= 1


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_keys_of_many_graphs_pass_as_leases_say_whatever_the_modes_of_steps_are() -> None:
    found = sum((judge(seed, keyed=True) for seed in range(NIGHTLY)), Counter[str]())
    assert found["plans"] >= NIGHTLY // 2
    assert found["leases"] >= NIGHTLY


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_waits_of_many_graphs_are_left_out_in_no_mode_that_needs_them() -> None:
    found = sum((judge(seed) for seed in range(NIGHTLY)), Counter[str]())
    assert found["plans"] >= NIGHTLY // 2
    assert found["in some modes"] >= NIGHTLY // 4


def recording(graph: StepGraph, word: Sequence[str]) -> StepGraph:
    """The graph with ops that write what they have seen, of what they touch in a step's mode."""
    modes = {mode.name: mode for mode in graph.modes}

    def body(vertex: Vertex) -> Run:
        def run(context: OpContext) -> None:
            mode = modes[word[context.step % len(word)]]
            idle = vertex.node.name in mode.skips
            left = mode.untouched.get(vertex.name, ())
            seen: list[object] = [vertex.name, context.step]
            for read in vertex.op.reads:
                if idle or read.name in left or read.name == graph.told_by:
                    continue
                state = read.name in graph.states
                seen.append(tuple(context.state(read.name)) if state else context.read(str(read)))
            for name in vertex.op.writes:
                if name == graph.told_by:
                    context.write(name, mode.name)
                elif name in graph.values:
                    if not idle:
                        context.write(name, hash((name, *seen)))
                elif not (idle or name in left):
                    context.state(name).append(hash((name, *seen)))

        return run

    return graph.with_ops(lambda vertex: replace(vertex.op, run=body(vertex)))


def runs_alike(seed: int) -> bool:
    plan = planned(seed)
    if plan is None or plan.always is plan:
        return False
    word = words(plan, seed, 1)[-1]
    told = replace(plan, graph=recording(plan.graph, word))
    found = []
    executors: tuple[str | Executor, ...] = ("serial", "threads", Deferred(seed))
    for executor in executors:
        states: dict[str, list[object]] = {state: [] for state in plan.graph.states}
        values = [name for name, value in plan.graph.values.items() if value.place != "device"]
        report = run(told, executor=executor, steps=12, states=states, keep=values)
        found.append((states, {name: list(each) for name, each in report.kept.items()}))
    assert found[0] == found[1], f"seed {seed}: threads"
    assert found[0] == found[2], f"seed {seed}: a device that works late"
    return True


def test_runs_of_every_word_give_what_the_serial_loop_gives() -> None:
    assert sum(runs_alike(seed) for seed in range(12)) >= 2


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_runs_of_many_words_give_what_the_serial_loop_gives() -> None:
    assert sum(runs_alike(seed) for seed in range(NIGHTLY)) >= NIGHTLY // 5


# --- the shipped one -----------------------------------------------------------------------------


def in_turns() -> Plan:
    return shipped_plan("grammar_in_turns")


def some(plan: Plan) -> dict[tuple[str, str], Wait]:
    return {(w.source, w.target): w for w in plan.waits if w.modes is not None}


def test_a_step_without_a_grammar_does_not_wait_for_the_grammar_thread() -> None:
    plan = in_turns()
    wait = some(plan)["fill_mask.host", "sample.host"]
    assert (wait.modes, wait.told, wait.distance) == (("structured",), 0, 0)
    periods = mode_periods(plan)
    assert periods is not None
    assert periods.unconditional_us is not None
    assert periods.worst_us < 0.9 * periods.unconditional_us
    for word in (("plain", "structured"), ("structured", "plain")):
        assert float(word_period(plan, word)) == pytest.approx(periods.worst_us)
        simulated = simulate_word(plan, word, steps=60).period_us
        assert simulated == pytest.approx(periods.worst_us, rel=0.03)


def test_no_word_of_two_modes_is_longer_than_the_guarantee() -> None:
    graph = in_turns().graph
    free = replace(graph, modes=tuple(replace(mode, after=None) for mode in graph.modes))
    plan = compile_plan(free)
    periods = mode_periods(plan)
    assert periods is not None
    for length in (1, 2, 3):
        for word in product(("plain", "structured"), repeat=length):
            assert float(word_period(plan, word)) <= periods.worst_us + 1e-6


def test_what_is_told_by_no_value_waits_in_every_mode() -> None:
    graph = replace(in_turns().graph, told_by=None)
    assert some(compile_plan(graph)) == {}


def test_whoever_may_not_know_the_mode_waits_in_every_mode() -> None:
    """The grammar thread no longer comes after the op that tells the mode."""
    graph = in_turns().graph
    nodes = []
    for node in graph.nodes:
        if node.actor == "grammar":
            reads = tuple(read for read in node.host[0].reads if read.name == "matchers")
            node = replace(node, host=(replace(node.host[0], reads=reads),))
        nodes.append(node)
    blind = compile_plan(replace(graph, nodes=tuple(nodes)))
    assert ("fill_mask.host", "sample.host") not in some(blind)
    mutant = changed(blind, *_doctored(blind))
    assert any("may not know" in each.message for each in violations(mutant))


def _doctored(plan: Plan) -> tuple[int, Wait]:
    for index, wait in enumerate(plan.waits):
        if (wait.source, wait.target) == ("fill_mask.host", "sample.host"):
            return index, replace(wait, modes=("structured",))
    raise AssertionError("there is no such wait")


def test_an_op_that_tells_no_mode_is_named() -> None:
    graph = in_turns().graph.with_ops(lambda vertex: replace(vertex.op, run=lambda context: None))
    with pytest.raises(NodeFailure, match="which is no mode"):
        run(compile_plan(graph), executor="threads", steps=3, states=dict.fromkeys(graph.states))


@pytest.mark.parametrize(
    ("told", "untouched"),
    [("nothing", {}), ("x", {}), ("kind", {"end.host": ("kind",)}), ("kind", {"end.host": ("y",)})],
    ids=["unknown", "slots", "the mode itself", "never touched"],
)
def test_what_cannot_tell_the_mode_is_refused(
    told: str, untouched: dict[str, tuple[str, ...]]
) -> None:
    nodes = [
        Node("begin", (Op(writes=("kind", "x")),)),
        Node("end", (Op((Read("kind"), Read("x"))),)),
    ]
    values = [Value("kind"), Value("x", "pinned", "slots")]
    with pytest.raises(GraphError) as caught:
        StepGraph.build(
            nodes, values, modes=[Mode("a", untouched=untouched), Mode("b")], told_by=told
        )
    assert caught.value.code == "SW-MODE"
