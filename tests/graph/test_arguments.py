"""Wrong arguments of the Python door: one sentence that names the function and the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from stepweave.executors.run import run
from stepweave.graph.declare import node, step_graph, value
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Node, Op, Value
from stepweave.graph.parameters import given as resource
from stepweave.graph.parameters import read, update
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.timelines.simulated import simulate
from stepweave.views.dot import dot
from stepweave.views.lanes import lanes


def one() -> Any:
    @node(writes="x", cost_us=5)
    def first() -> int:
        return 1

    return first


GRAPH = step_graph(one(), values=[value("x", storage="slots")])
PLAN = compile_plan(GRAPH)
HOSTILE: list[Any] = [None, True, -1, 0, 1.5, math.nan, math.inf, -math.inf, 10**400, "", "x"]
HOSTILE += [b"x", [], {}, (), [1], {"a": 1}, {1: 2}, object(), int, len, GRAPH, PLAN, 1j]


async def later() -> None: ...


def far(x: int = read("x", 10**9)) -> None: ...


def nothing() -> None: ...


def reading(given: Any) -> Callable[..., None]:
    def reader(x: int = read("x", given)) -> None: ...

    return reader


def graph_of(**changes: Any) -> StepGraph:
    declared = {"name": "n", "host": (Op(),), **changes}
    return StepGraph.build([Node(**declared)], [])


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: compile_plan("x"), "compile_plan: graph must be a step graph, as"),  # type: ignore[arg-type]
    (lambda: compile_plan(GRAPH, costs=[1]), "compile_plan: costs must be a mapping of op names"),  # type: ignore[arg-type]
    (lambda: compile_plan(GRAPH, costs={"first.host": -1}), "costs['first.host'] must be a number"),
    (lambda: compile_plan(GRAPH, costs={"first.host": math.nan}), "not nan."),
    (lambda: compile_plan(GRAPH, costs={"first.host": math.inf}), "not inf."),
    (lambda: compile_plan(GRAPH, costs={"first.host": "5"}), "not '5'."),  # type: ignore[dict-item]
    (lambda: compile_plan(GRAPH, costs={1: 5}), "each key of costs must be a name, not 1."),  # type: ignore[dict-item]
    (lambda: compile_plan(GRAPH, slots={"x": 0}), "slots['x'] must be a whole number"),
    (lambda: compile_plan(GRAPH, slots={"x": True}), "slots['x'] must be a whole number"),
    (
        lambda: compile_plan(GRAPH, slots={"x": 10**9}),
        "slots['x'] must be a whole number",
    ),
    (lambda: compile_plan(GRAPH, slots={"x": 1.5}), "not 1.5."),  # type: ignore[dict-item]
    (lambda: compile_plan(GRAPH, order="serach"), "(did you mean 'search'?)"),  # type: ignore[arg-type]
    (lambda: step_graph(42), "step_graph: each node must be a Node or a function decorated"),  # type: ignore[arg-type]
    (lambda: step_graph(lambda: 1), "step_graph: each node must be a Node or a function decorated"),  # type: ignore[arg-type]
    (lambda: step_graph([one()]), "each an argument of its own, not a list."),  # type: ignore[arg-type]
    (lambda: step_graph(one(), values="x"), "values must be a list, each entry value(…), not 'x'"),  # type: ignore[arg-type]
    (lambda: step_graph(one(), values=[3]), "each of values must be made by value(…), not 3."),  # type: ignore[list-item]
    (lambda: step_graph(one(), states="kv"), "states must be a list, each entry a name, not 'kv'"),
    (lambda: step_graph(one(), states=[3]), "each of states must be a name or a State, not 3."),  # type: ignore[list-item]
    (lambda: step_graph(one(), order="fast"), "order must be 'keep' or 'search', not 'fast'"),  # type: ignore[arg-type]
    (lambda: step_graph(one(), one()), "node 'first' is declared twice"),
    (lambda: node("x"), "node: the decorated object must be a plain function"),  # type: ignore[call-overload]
    (lambda: node(int), "node: the decorated object must be a plain function"),
    (lambda: node(one()), "node: the decorated object must be a plain function"),
    (lambda: node(later), "must be a plain function, not 'async function'"),
    (lambda: node(writes=5)(len), "node 'len': writes must be a value, or a tuple of values"),  # type: ignore[call-overload]
    (lambda: node(cost_us=-1)(later), "must be a plain function"),
    (lambda: node(cost_us=-1)(lambda: 1), "cost_us must be a number from 0 to 1e+12, not -1."),
    (lambda: node(offset=1.5)(lambda: 1), "offset must be a whole number"),  # type: ignore[call-overload]
    (lambda: node(stream=5)(lambda: 1), "stream must be a name, not 5."),  # type: ignore[call-overload]
    (lambda: read(5), "read: its first argument must be a Value, or the name of one, not 5."),  # type: ignore[arg-type]
    (lambda: update(""), "update: its first argument must be a State, or the name of one"),
    (lambda: resource(None), "given: its argument must be a Resource"),  # type: ignore[arg-type]
    (lambda: value(5), "value: its name must be a name, not 5."),  # type: ignore[arg-type]
    (lambda: value("x", slots=0), "value 'x': slots must be a whole number from 1 to"),
    (lambda: value("x", place="gpu"), "value 'x': place must be 'host' or 'pinned' or 'device'"),  # type: ignore[arg-type]
    (lambda: value("x", nbytes=-1), "value 'x': nbytes must be a whole number from 0 to"),
    (lambda: value("x", allocate=5), "value 'x': allocate must be a function without parameters"),  # type: ignore[arg-type]
    (lambda: graph_of(host=(Op(cost_us="5"),)), "node 'n': cost_us must be a number"),  # type: ignore[arg-type]
    (lambda: graph_of(host=(Op(cost_us=math.nan),)), "node 'n': cost_us must be a number"),
    (lambda: graph_of(offset="1"), "node 'n': offset must be a whole number"),
    (
        lambda: step_graph(one(), node(far)),
        "the carry of 'x' must be a whole number",
    ),
    (
        lambda: StepGraph.build([Node("n")], [Value("x", "pinned", "slots", "2")]),  # type: ignore[arg-type]
        "value 'x': slots must be a whole number",
    ),
    (lambda: run(GRAPH), "run: plan must be a plan, as `compile_plan` makes"),  # type: ignore[arg-type]
    (lambda: run(PLAN, steps=-1), "run: steps must be a whole number from 0 to"),
    (lambda: run(PLAN, steps=2.5), "run: steps must be a whole number from 0 to"),  # type: ignore[arg-type]
    (lambda: run(PLAN, steps=1, executor=5), "run: executor must be one of serial, threads, cuda"),  # type: ignore[arg-type]
    (lambda: run(PLAN, steps=1, keep="x"), "run: keep must be a list of names, as in ['x'], not"),
    (lambda: run(PLAN, steps=1, states=[]), "run: states must be a mapping of state names"),  # type: ignore[arg-type]
    (lambda: run(PLAN, steps=1, watchdog_s=-1), "run: watchdog_s must be a number"),
    (lambda: verify(GRAPH), "verify: plan must be a plan, as `compile_plan` makes"),  # type: ignore[arg-type]
    (lambda: lanes(GRAPH), "lanes: plan must be a plan, as `compile_plan` makes"),  # type: ignore[arg-type]
    (lambda: lanes(PLAN, width="a"), "lanes: width must be a whole number from 0"),  # type: ignore[arg-type]
    (lambda: lanes(PLAN, steps=-1), "lanes: steps must be a whole number from 0"),
    (lambda: dot(GRAPH), "dot: plan must be a plan, as `compile_plan` makes"),  # type: ignore[arg-type]
    (lambda: simulate(GRAPH, steps=1), "simulate: plan must be a plan"),  # type: ignore[arg-type]
    (lambda: simulate(PLAN, steps=-1), "simulate: steps must be a whole number"),
    (lambda: simulate(PLAN, steps=1, jitter=2), "simulate: jitter must be a number from 0 to 1"),
    (lambda: simulate(PLAN, steps=1, costs={"first.host": -1}), "costs['first.host'] must be a"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_argument_is_refused_by_name(number: int) -> None:
    call, said = WRONG[number]
    with pytest.raises(StepweaveError) as caught:
        call()
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


CALLS: dict[str, Callable[[Any], object]] = {
    "compile_plan(graph)": lambda given: compile_plan(given),
    "compile_plan(costs)": lambda given: compile_plan(GRAPH, costs=given),
    "compile_plan(cost)": lambda given: compile_plan(GRAPH, costs={"first.host": given}),
    "compile_plan(slots)": lambda given: compile_plan(GRAPH, slots=given),
    "compile_plan(slot)": lambda given: compile_plan(GRAPH, slots={"x": given}),
    "compile_plan(order)": lambda given: compile_plan(GRAPH, order=given),
    "step_graph(nodes)": lambda given: step_graph(given),
    "step_graph(values)": lambda given: step_graph(one(), values=given),
    "step_graph(states)": lambda given: step_graph(one(), states=given),
    "step_graph(name)": lambda given: step_graph(one(), name=given),
    "node": lambda given: node(given),
    "node(writes)": lambda given: node(writes=given)(nothing),  # type: ignore[no-untyped-call]
    "read": lambda given: read(given),
    "update": lambda given: update(given),
    "step_graph(read)": lambda given: step_graph(node(reading(given))),
    "node(stream)": lambda given: node(stream=given)(lambda: 1),
    "node(offset)": lambda given: node(offset=given)(lambda: 1),
    "node(cost_us)": lambda given: node(cost_us=given)(lambda: 1),
    "node(launch)": lambda given: node(stream="compute", launch=given)(lambda: 1),
    "node(name)": lambda given: node(name=given)(lambda: 1),
    "value": lambda given: value(given),
    "value(place)": lambda given: value("x", place=given),
    "value(slots)": lambda given: value("x", slots=given),
    "value(nbytes)": lambda given: value("x", nbytes=given),
    "value(allocate)": lambda given: value("x", allocate=given),
    "run(plan)": lambda given: run(given, steps=1),
    "run(keep)": lambda given: run(PLAN, steps=1, keep=given),
    "run(states)": lambda given: run(PLAN, steps=1, states=given),
    "verify(plan)": lambda given: verify(given),
    "lanes(plan)": lambda given: lanes(given),
    "lanes(steps)": lambda given: lanes(PLAN, steps=given),
    "lanes(width)": lambda given: lanes(PLAN, width=given),
    "dot(plan)": lambda given: dot(given),
    "simulate(plan)": lambda given: simulate(given, steps=1),
    "simulate(jitter)": lambda given: simulate(PLAN, steps=1, jitter=given),
    "simulate(costs)": lambda given: simulate(PLAN, steps=1, costs=given),
}


@pytest.mark.parametrize("argument", CALLS)
def test_hostile_values_are_taken_or_refused_in_one_sentence(argument: str) -> None:
    said = []
    for given in HOSTILE:
        try:
            CALLS[argument](given)
        except StepweaveError as error:
            said.append(str(error))
    assert said, "some of them must be wrong"
    assert not [each for each in said if "\n" in each]
