"""That ranks decide alike: what is own reaches no decision, and the path is named."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from stepweave.cli.planned import planned
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Across, Comm, Node, Op, Read, State, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.uniform import check_uniform, divergences
from stepweave.graph.ranks import Ranked, ranked_graph
from stepweave.graph.step_graph import StepGraph, Vertex
from tests.graph.build import host, op, value
from tests.graph.ranked import collective


def chain(*ops: Op, first: Across | None = "own", last: Across | None = None) -> StepGraph:
    """a → op0 → b → op1 → c …"""
    names = "abcdefgh"[: len(ops) + 1]
    nodes = [
        host(f"op{k}", replace(each, reads=(Read(names[k]),), writes=(names[k + 1],)), line=k + 1)
        for k, each in enumerate(ops)
    ]
    values = [Value(name, external=name == "a", across=None) for name in names]
    values[0] = replace(values[0], across=first)
    values[-1] = replace(values[-1], across=last)
    return StepGraph.build(nodes, values)


def test_a_decision_made_from_what_is_own_is_refused_with_the_path() -> None:
    graph = chain(Op(), Op(), Op(decides="the rows"))
    with pytest.raises(GraphError, match=r"'op2.host' decides the rows: a → op0.host → b") as error:
        check_uniform(graph)
    assert (error.value.code, error.value.line) == ("SW-OWN", 3)
    assert divergences(graph)[0].path == ("a", "op0.host", "b", "op1.host", "c", "op2.host")


def test_an_op_that_agrees_makes_the_same_of_what_is_own() -> None:
    assert not divergences(chain(Op(), Op(agrees=True), Op(decides="the rows")))
    assert divergences(chain(Op(agrees=True), Op(), Op(decides="the rows"))) == []
    assert divergences(chain(Op(agrees=True, decides="x"))), "it agrees after it has decided"


def test_what_is_same_decides_as_it_likes_and_a_promise_is_proved() -> None:
    assert not divergences(chain(Op(decides="the rows"), first=None))
    assert not divergences(chain(Op(decides="the rows"), first="same"))
    broken = divergences(chain(Op(), last="same"))
    assert [each.path for each in broken] == [("a", "op0.host", "b")]
    assert "declared to be the same" in str(broken[0])
    assert not divergences(chain(Op(agrees=True), last="same"))


def test_a_state_that_one_op_makes_own_is_own_for_all() -> None:
    nodes = [
        host("note", op("inbox", "log")),
        host("decide", replace(op("log"), decides="whether to call")),
    ]
    graph = StepGraph.build(nodes, [], [State("inbox", across="own"), "log"])
    assert [each.path for each in divergences(graph)] == [
        ("inbox", "note.host", "log", "decide.host")
    ]


def test_ranks_that_would_decide_differently_are_not_compiled() -> None:
    """Drafts that each rank proposes on its own CPU decide the width of a step (vLLM 31307)."""
    nodes = [
        Ranked(host("propose", op("clock", "drafts"))),
        Ranked(host("forward", replace(op("drafts"), decides="the width of the step"))),
    ]
    values = [value("drafts")]
    states = [State("clock", across="own")]
    with pytest.raises(GraphError, match=r"clock → propose.host → drafts → forward.host"):
        compile_plan(ranked_graph(nodes, values, states, ranks=2))
    agreed = [
        nodes[0],
        collective("agree", (0, 1), part=replace(op("drafts", "agreed"), agrees=True)),
        Ranked(host("forward", replace(op("agreed"), decides="the width of the step"))),
    ]
    compile_plan(ranked_graph(agreed, [*values, value("agreed")], states, ranks=2))


def test_the_decode_step_must_agree_in_two_places() -> None:
    """What a sharded forward computes is own; the commit decides which requests end."""
    graph = planned("async_eagle3_grammar").graph
    values = {
        name: replace(datum, across="own" if name in ("logits", "hidden") else None)
        for name, datum in graph.values.items()
    }
    states = {name: replace(datum, across=None) for name, datum in graph.states.items()}

    def marked(vertex: Vertex) -> Op:
        decides = "which requests end" if vertex.name == "commit.host.advance" else ""
        agrees = vertex.name in agreeing
        return replace(vertex.op, decides=decides, agrees=agrees)

    agreeing: tuple[str, ...] = ()
    here = replace(graph, values=values, states=states)
    [found] = divergences(here.with_ops(marked))
    assert found.path[0] in ("logits", "hidden")
    assert found.path[-1] == "commit.host.advance"
    agreeing = ("sample.device",)
    [found] = divergences(here.with_ops(marked))
    assert found.path[:2] == ("hidden", "draft.device")
    agreeing = ("sample.device", "draft.device")
    assert not divergences(here.with_ops(marked))


def test_two_ranks_that_run_a_graph_differ_exactly_where_the_check_says() -> None:
    """Theorem E by brute force: run random graphs twice, own data apart, and compare all data."""
    decided = 0
    for seed in range(300):
        graph = _random(Random(seed))
        differing = _differing(graph)
        said = {each.path[-1] for each in divergences(graph)}
        for vertex in graph.vertices.values():
            reads = {read.name for read in vertex.op.reads}
            if vertex.op.decides:
                assert (vertex.name in said) == bool(reads & differing), seed
                decided += vertex.name in said
    assert decided > 50


def _random(random: Random) -> StepGraph:
    names = [f"v{k}" for k in range(6)]
    values = [
        Value(names[k], external=k < 2, across="own" if random.random() < 0.25 else None)
        for k in range(6)
    ]
    nodes = []
    for k in range(2, 6):
        reads = [
            f"{name}@-1" if random.random() < 0.3 else name for name in names if name != names[k]
        ]
        chosen = random.sample(
            [r for r in reads if "@" in r or r in names[:k]], 1 + random.randrange(2)
        )
        made = op(" ".join(chosen), names[k])
        decides = "something" if random.random() < 0.5 else ""
        nodes.append(host(f"n{k}", replace(made, agrees=random.random() < 0.25, decides=decides)))
    return StepGraph.build(nodes, values)


def _differing(graph: StepGraph) -> set[str]:
    """The data of which two ranks hold different versions at some time."""
    held: dict[tuple[int, str, int], object] = {}
    for step, vertex in product(range(-1, 8), graph.vertices.values()):
        for rank in (0, 1):
            for read in vertex.op.reads:
                key = (rank, read.name, step - read.carry)
                own = graph.values[read.name].across == "own"
                held.setdefault(key, (read.name, rank if own else "all"))
            seen = tuple(held[rank, r.name, step - r.carry] for r in vertex.op.reads)
            for name in vertex.op.writes:
                own = graph.values[name].across == "own"
                made = ("agreed", name, step) if vertex.op.agrees else hash((vertex.name, seen))
                held[rank, name, step] = (made, rank) if own else made
    pairs = {(name, step) for rank, name, step in held if rank == 0}
    return {n for n, step in pairs if held[0, n, step] != held.get((1, n, step))}


def test_who_writes_a_state_sees_it() -> None:
    node = host("pick", Op(writes=("queue", "rows"), decides="the rows"))
    graph = StepGraph.build([node], [Value("rows")], [State("queue", across="own")])
    with pytest.raises(GraphError, match=r"queue → pick\.host") as error:
        check_uniform(graph)
    assert error.value.code == "SW-OWN"


@pytest.mark.parametrize("deciding", [0, 1])
def test_a_decision_at_one_end_of_a_message_is_one(deciding: int) -> None:
    def end(rank: int, *writes: str) -> Node:
        decides = "the batch" if rank == deciding else ""
        return Node("send", (Op((Read("queue"),), writes, decides=decides),))

    sent = Ranked(
        Node("send"),
        comm=Comm("send", "message", (0, 1), "world", 1),
        ends={0: end(0), 1: end(1, "rows")},
    )
    graph = ranked_graph([sent], [Value("rows")], [State("queue", across="own")], ranks=2)
    with pytest.raises(GraphError, match="decides the batch") as error:
        check_uniform(graph)
    assert error.value.code == "SW-OWN"
