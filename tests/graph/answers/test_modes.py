"""Periods of plans with modes, against all short words run step by step."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from stepweave.cli.planned import planned
from stepweave.graph.answers import modes as modes_module
from stepweave.graph.answers.modes import mode_periods, word_period
from stepweave.graph.errors import DeadlockError, GraphError
from stepweave.graph.modes import Mode, follows
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.graphs import random_step_graph
from stepweave.timelines.modes import simulate_word

from ..modes_oracle import Runs

NIGHTLY = 3000


def with_modes(seed: int) -> Plan | None:
    """A random plan with two or three modes, of which some may not follow each other."""
    random, graph = Random(seed), random_step_graph(seed, most_nodes=4)
    names = ["a", "b", "c"][: random.choice((2, 2, 3))]
    modes = []
    for name in names:
        ops = [op for op in graph.vertices if random.random() < 0.6]
        nodes = [node.name for node in graph.nodes if random.random() < 0.2]
        after = tuple(n for n in names if n != name) if random.random() < 0.3 else None
        costs = {op: float(random.choice((0, 1, 10, 60, 300))) for op in ops}
        modes.append(Mode(name, costs, tuple(nodes), after))
    try:
        return compile_plan(replace(graph, modes=tuple(modes)))
    except DeadlockError:
        return None


def may_repeat(plan: Plan, word: tuple[str, ...]) -> bool:
    turns = zip(word, (*word[1:], word[0]), strict=True)
    return all(follows(plan.graph, first, then) for first, then in turns)


def judge(seed: int, longest: int = 3) -> bool:
    """No word takes longer than the guarantee, and the word that is named takes as long."""
    plan = with_modes(seed)
    if plan is None:
        return False
    found = mode_periods(plan)
    assert found is not None
    runs = Runs(plan)
    worst = Fraction(found.worst_us)
    names = [mode.name for mode in plan.graph.modes]
    words = [w for n in range(1, longest + 1) for w in product(names, repeat=n)]
    for word in [w for w in words if may_repeat(plan, w)]:
        grown = runs.growth(word)
        if grown is not None:
            assert grown == word_period(plan, word), f"seed {seed}: {word}"
            assert grown <= worst + Fraction(1, 1000), f"seed {seed}: {word} takes {grown}"
        if len(word) == 1:
            assert float(word_period(plan, word)) == found.by_mode[word[0]]
    assert found.word
    assert may_repeat(plan, found.word), f"seed {seed}: {found.word}"
    assert float(word_period(plan, found.word)) == pytest.approx(found.worst_us), f"seed {seed}"
    grown = runs.growth(found.word)
    assert grown is None or float(grown) == pytest.approx(found.worst_us), f"seed {seed}"
    assert found.one_cost_us >= found.worst_us - 1e-6
    return True


def test_no_word_takes_longer_than_the_guarantee_and_one_takes_as_long() -> None:
    assert sum(judge(seed) for seed in range(8)) >= 4


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_no_word_takes_longer_than_the_guarantee_of_many_graphs() -> None:
    assert sum(judge(seed, 4) for seed in range(NIGHTLY)) >= NIGHTLY // 2


def test_what_no_step_takes_together_is_not_added_up() -> None:
    """One op is long in one mode, the other in the other, and both are on one cycle."""
    nodes = [
        Node("first", (Op(writes=("x",), cost_us=0.0),), actor="one"),
        Node("then", (Op((Read("x"),), ("y",), cost_us=0.0),), actor="two"),
    ]
    values = [Value("x", place="pinned", storage="slots", slots=1), Value("y")]
    modes = [Mode("a", {"first.host": 100.0}), Mode("b", {"then.host": 100.0})]
    found = mode_periods(compile_plan(StepGraph.build(nodes, values, order="keep", modes=modes)))
    assert found is not None
    assert found.by_mode == {"a": 100.0, "b": 100.0}
    assert (found.worst_us, found.one_cost_us) == (100.0, 200.0)


def prefill_decode() -> Plan:
    return planned("prefill_decode")


def test_the_shipped_modes_have_different_periods_and_a_guarantee_below_one_cost_for_all() -> None:
    found = mode_periods(prefill_decode())
    assert found is not None
    assert found.by_mode == {"decode": 4385.0, "prefill": 5685.0}
    assert (found.worst_us, found.word, found.one_cost_us) == (5685.0, ("prefill",), 8085.0)
    assert found.expected_us is not None
    assert found.expected_least_us is not None
    assert 4385.0 < found.expected_least_us <= found.expected_us < 5685.0


def work_in(*modes: Mode) -> Plan:
    node = Node("work", (Op(writes=("x",), cost_us=100.0),))
    return compile_plan(StepGraph.build([node], [Value("x")], modes=modes))


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ([Mode("a", share=0.5), Mode("b", {"work.host": 900.0}, share=0.5)], 500.0),
        ([Mode("a", share=0.5), Mode("b", {"work.host": 900.0}, (), ("a",), 0.5)], 500.0),
        ([Mode("a", share=0.8), Mode("b", {"work.host": 900.0}, (), ("a",), 0.2)], 260.0),
        ([Mode("a", share=0.9), Mode("b", {"work.host": 900.0}, (), ("a",), 0.1)], 180.0),
        (
            [
                Mode("a", share=0.5, after=("a", "c")),
                Mode("b", {"work.host": 900.0}, (), ("a",), 0.25),
                Mode("c", {"work.host": 500.0}, share=0.25),
            ],
            400.0,
        ),
    ],
)
def test_modes_are_expected_in_their_shares_wherever_they_may_come(
    modes: list[Mode], expected: float
) -> None:
    """One op one after the other: a step takes the mean of what it takes in each."""
    found = mode_periods(work_in(*modes))
    assert found is not None
    assert found.expected_us == pytest.approx(expected, rel=0.03)
    assert found.expected_least_us == pytest.approx(expected, rel=0.001)


def test_a_mode_that_has_to_alternate_takes_the_period_of_that_word() -> None:
    """Long on the device in one step, on the host in the next: no mean of costs tells it."""
    nodes = [
        Node("first", (Op(writes=("x",), cost_us=10.0),), actor="one"),
        Node("then", (Op((Read("x"),), ("y",), cost_us=10.0),), actor="two"),
    ]
    values = [Value("x", place="pinned", storage="slots", slots=1), Value("y")]
    modes = [
        Mode("a", {"first.host": 100.0}, share=0.5),
        Mode("b", {"then.host": 300.0}, after=("a",), share=0.5),
    ]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep", modes=modes))
    found = mode_periods(plan)
    assert found is not None
    assert found.expected_us == pytest.approx(float(word_period(plan, ("a", "b"))), rel=0.01)


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ([Mode("a", share=0.8), Mode("b", share=0.5)], "sum is 1.3"),
        ([Mode("a", share=0.3), Mode("b", share=0.5)], "sum is 0.8"),
        ([Mode("a", share=0.8), Mode("b", share=0.5), Mode("c")], "sum is 1.3"),
        (
            [Mode("a", share=0.1), Mode("b", share=0.9, after=("a",))],
            "'b' cannot be in 0.9 of all steps: the modes that may come before, 'a', are in 0.1",
        ),
    ],
)
def test_shares_that_no_sequence_has_are_refused(modes: list[Mode], said: str) -> None:
    with pytest.raises(GraphError, match=re.escape(said)):
        work_in(*modes)


@pytest.mark.parametrize("word", [("decode",), ("prefill",), ("decode", "decode", "prefill")])
def test_a_simulated_word_takes_its_period(word: tuple[str, ...]) -> None:
    plan = prefill_decode()
    steps = 60 * len(word)
    assert simulate_word(plan, word, steps=steps).period_us == pytest.approx(
        float(word_period(plan, word)), rel=0.03
    )


@pytest.mark.parametrize(
    "modes",
    [
        [Mode("a", {"other.host": 1.0})],
        [Mode("a", skips=("other",))],
        [Mode("a", after=("b",))],
        [Mode("a", after=())],
        [Mode("a"), Mode("a")],
        [Mode("a", share=2.0)],
        [Mode("a", after=("a",)), Mode("b", after=("a",))],
        [Mode(f"m{k}") for k in range(9)],
    ],
    ids=["op", "node", "unknown", "never", "twice", "share", "end", "many"],
)
def test_modes_that_make_no_sense_are_refused(modes: list[Mode]) -> None:
    with pytest.raises(GraphError) as caught:
        StepGraph.build([Node("only")], [], modes=modes)
    assert caught.value.code in ("SW-MODE", "SW-COST")


def test_a_graph_with_rates_has_no_modes() -> None:
    with pytest.raises(GraphError, match="cannot have modes yet"):
        StepGraph.build([Node("only", rate=2)], [], modes=[Mode("a")])


def test_a_plan_without_modes_is_told_nothing_of_them() -> None:
    assert mode_periods(compile_plan(StepGraph.build([Node("only")], []))) is None


def test_of_many_modes_over_many_steps_a_bound_is_guaranteed_at_once() -> None:
    """The graph of all windows would be too large: of 8 modes in 4 steps there are 4,096."""
    nodes = [
        Node("a", host=(Op(writes=("x",), cost_us=10),), actor="one"),
        Node("b", host=(Op(cost_us=10),), actor="one", offset=3),
        Node("c", host=(Op((Read("x"),), cost_us=10),), actor="two"),
    ]
    modes = [Mode(f"m{k}", costs={"a.host": 1.0 + k}) for k in range(8)]
    plan = compile_plan(StepGraph.build(nodes, [Value("x")], order="keep", modes=modes))
    windows = modes_module._windows(plan, tuple(each.name for each in modes), 3)
    assert len(windows) ** 2 > modes_module.MAX_PAIRS
    found = mode_periods(plan)
    assert found is not None
    assert found.worst_us <= found.one_cost_us
