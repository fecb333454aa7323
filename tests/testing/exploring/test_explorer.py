"""The explorer is right about sound plans and finds what is wrong with others, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from stepweave.executors.errors import NodeFailure
from stepweave.executors.run import run
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.declare import node, step_graph
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Node, Op, OpContext, Value
from stepweave.graph.parameters import context
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import is_bound
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.ranks import Ranked, ranked_graph
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.requests.request import SamplingParams
from stepweave.serving.engine import Engine
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing import engines as serving_testing
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_request
from stepweave.testing.exploring.explorer import (
    Explorer,
    InterleavingFailed,
    explore,
    explore_exhaustively,
    order_digest,
    replay,
)
from stepweave.testing.exploring.history import Diverged, History
from stepweave.testing.exploring.interleaving import Interleaving
from stepweave.testing.exploring.nodes import Interleaved, Unreadable, explore_nodes
from stepweave.testing.exploring.schedules import HeldBack, Priorities, Replay
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording, with_graph
from stepweave.testing.models import tiny_model, tiny_tokenizer
from stepweave.testing.unverified import Unverified, run_unverified
from tests.graph import oracle
from tests.graph.pipelines import decode, device_node, reads


def copy_back() -> Plan:
    """A device op writes, a copy on another stream brings it to the host, the host reads."""
    return compile_plan(
        StepGraph.build(
            [
                device_node("make", "compute", writes=("x",)),
                device_node("copy", "side", reads=reads("x"), writes=("out",)),
                Node("use", (Op(reads("out")),)),
            ],
            [Value("x", "device", "slots", 1), Value("out", "pinned", "slots", 1)],
            order="keep",
        )
    )


def without_wait(plan: Plan, index: int) -> Plan:
    return replace(plan, waits=plan.waits[:index] + plan.waits[index + 1 :])


# --- every interleaving of small plans ----------------------------------------------------------


def test_no_interleaving_of_a_sound_plan_goes_wrong() -> None:
    found = explore_exhaustively(copy_back(), steps=3)
    assert found.complete
    assert found.failure is None
    assert found.states > 40


@pytest.mark.parametrize("index", range(len(copy_back().waits)))
def test_some_interleaving_goes_wrong_without_a_wait(index: int) -> None:
    mutant = without_wait(copy_back(), index)
    exhaustive = explore_exhaustively(mutant, steps=3).failure
    assert exhaustive is not None
    wait = copy_back().waits[index]
    assert exhaustive.hazard in {protected.hazard for protected in wait.protects}
    _, again = Explorer(mutant, 3).attempt(Replay(exhaustive.actors))
    assert again is not None
    assert again.what == exhaustive.what


@pytest.mark.sampled(14)
@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_the_oracle_on_plans_with_a_wait_deleted(seed: int) -> None:
    """The oracle of these tests enumerates what is ordered; the explorer runs.

    In its first steps an executor reads no slot for a version before step 0, so three steps may be
    too few to show a race that the steady state has.
    """
    try:
        plan = compile_plan(random_step_graph(seed, most_nodes=3))
    except GraphError:
        return
    for candidate in (plan, *(without_wait(plan, index) for index in range(len(plan.waits)))):
        races = oracle.unordered_pairs(candidate)
        directed = explore(candidate, seeds=(), shrink=False).failure
        raced = directed is not None and directed.hazard != "BOUND"  # the oracle looks for races
        assert raced == bool(races), (directed, races)
        runs_away = directed is not None and directed.hazard == "BOUND"
        assert races or runs_away == any(map(is_bound, set(plan.waits) - set(candidate.waits)))
        exhaustive = explore_exhaustively(candidate, steps=3, limit=2000).failure
        assert races or exhaustive is None or exhaustive.hazard == "BOUND", exhaustive


def test_a_search_that_is_cut_short_says_so() -> None:
    found = explore_exhaustively(copy_back(), steps=3, limit=20)
    assert not found.complete
    assert found.states == 20


# --- what it finds ------------------------------------------------------------------------------


def test_a_slot_that_is_overwritten_before_it_is_read_is_named_with_both_accesses() -> None:
    plan = compile_plan(decode())
    failure = explore(replace(plan, slots={**plan.slots, "staging": 1})).failure
    assert failure is not None
    assert failure.hazard == "WAR"
    assert failure.first is not None
    assert failure.second is not None
    assert (failure.first.op, failure.first.step) == ("prepare.device", 0)
    assert (failure.second.op, failure.second.step) == ("prepare.host", 1)
    assert (failure.first.value, failure.first.slot) == ("staging", 0)
    said = str(failure)
    assert "node 'prepare', op 'prepare.device' of step 0 reads staging (slot 0)" in said
    assert "node 'prepare', op 'prepare.host' of step 1 writes staging (slot 0)" in said
    assert "prepare.device of step 0 held back until prepare.host of step 1 is done" in said


def test_a_wait_that_captures_no_record_does_nothing() -> None:
    plan = copy_back()
    program = (("copy.host", 0), ("make.host", 0), ("use.host", 0))
    failure = explore(replace(plan, actors={**plan.actors, "driver": program})).failure
    assert failure is not None
    assert failure.hazard == "LOST"
    assert "the wait does nothing" in failure.what


def test_a_stream_that_two_threads_feed_in_any_order_is_found() -> None:
    graph = StepGraph.build(
        [
            device_node("first", "compute", writes=("x",)),
            device_node("second", "compute", actor="helper"),
        ],
        [Value("x", "device", "slots", 2)],
        order="keep",
    )
    plan = compile_plan(graph)
    assert explore(plan).failure is None
    failure = explore(replace(plan, waits=())).failure
    assert failure is not None
    assert failure.hazard == "LAUNCH"


def test_a_state_changed_in_the_wrong_order_is_found() -> None:
    graph = StepGraph.build(
        [
            device_node("first", "a", writes=("state",)),
            device_node("second", "b", writes=("state",)),
        ],
        [],
        ["state"],
        order="keep",
    )
    plan = compile_plan(graph)
    assert explore_exhaustively(plan).failure is None
    failure = explore(replace(plan, waits=())).failure
    assert failure is not None
    assert failure.hazard == "WAW"
    assert failure.first is not None
    assert failure.first.value == "state"


def test_a_phase_that_runs_before_the_one_it_continues_is_found() -> None:
    graph = StepGraph.build([Node("a", (Op(phase="one"), Op(phase="two")))], [], order="keep")
    plan = compile_plan(graph)
    assert explore(plan).failure is None
    (program,) = plan.actors.values()
    failure = explore(replace(plan, actors={"driver": program[::-1]})).failure
    assert failure is not None
    assert failure.hazard == "PHASE"


def test_a_plan_that_waits_for_itself_is_stuck() -> None:
    plan = compile_plan(
        StepGraph.build(
            [Node("a", (Op(writes=("x",)),)), Node("b", (Op(reads("x")),), actor="helper")],
            [Value("x")],
            order="keep",
        )
    )
    wait, _ = plan.waits  # the other is a bound
    back = replace(wait, source=wait.target, target=wait.source)
    failure = explore(replace(plan, waits=(wait, back))).failure
    assert failure is not None
    assert failure.hazard == "STUCK"
    assert "driver before a.host" in failure.what


def test_a_state_that_lacks_a_change_at_the_end_is_found() -> None:
    graph = StepGraph.build(
        [Node("a", (Op(writes=("state",)),)), Node("b", (Op(writes=("state",)),))],
        [],
        ["state"],
        order="keep",
    )
    history = History.of(compile_plan(graph), steps=1)
    history.begin("a.host", 0)
    history.end("a.host", 0)
    with pytest.raises(Diverged, match="'state' ends as another") as caught:
        history.finish()
    assert caught.value.first.op == "b.host"


def test_a_failure_can_be_raised() -> None:
    with pytest.raises(InterleavingFailed, match="RAW") as caught:
        explore(without_wait(copy_back(), 0)).check()
    assert caught.value.code == "SW-INTERLEAVING"
    explore(copy_back()).check()


# --- schedules ----------------------------------------------------------------------------------


def test_a_seed_replays_its_failure_event_by_event() -> None:
    mutant = without_wait(copy_back(), 0)
    found = explore(mutant, seeds=range(50), directed=False, shrink=False).failure
    assert found is not None
    assert found.seed is not None
    assert replay(mutant, found.seed) == found
    assert f"found by seed {found.seed}" in str(found)


def test_random_failures_shrink_to_one_op_held_back_in_the_fewest_steps() -> None:
    plan = compile_plan(decode())
    mutant = replace(plan, slots={**plan.slots, "staging": 1})
    raw = explore(mutant, directed=False, shrink=False).failure
    small = explore(mutant, directed=False).failure
    assert raw is not None
    assert small is not None
    assert raw.hazard == small.hazard == "WAR"
    assert small.steps == 2 < raw.steps
    assert len(small.actors) < len(raw.actors)
    assert small.seed == raw.seed


def test_where_no_single_op_will_do_the_fewest_choices_are_kept() -> None:
    mutant = without_wait(copy_back(), 0)
    explorer = Explorer(mutant, 3)
    for seed in range(50):
        actors, failure = explorer.attempt(explorer.random(seed))
        if failure is not None:
            break
    assert failure is not None
    small = explorer._with_fewest_choices(failure)
    assert small.hazard == failure.hazard
    assert small.schedule.startswith("the reference order, but for ")
    assert small.schedule.count(" at event ") <= 3
    assert len(actors) == len(failure.actors)


def test_holding_back_an_op_lets_all_happen_that_the_plan_does_not_order_after_it() -> None:
    explorer = Explorer(copy_back(), 2)
    order: list[str] = []

    class Noted:
        def begin(self, op: str, step: int) -> None:
            order.append(f"{op} {step}")

        def end(self, op: str, step: int) -> None: ...

    run_ = Interleaving(explorer.plan, explorer.program, 2, Noted())
    held = HeldBack("make.device", 0)
    while enabled := run_.enabled():
        run_.take(held.choose(run_, enabled))
    assert run_.over
    before = order[: order.index("make.device 0")]
    assert before == ["make.host 0", "copy.host 0"]  # use.host waits for the copy of this step


def test_random_priorities_are_a_function_of_the_seed() -> None:
    explorer = Explorer(compile_plan(decode()))
    orders = [explorer.attempt(explorer.random(seed))[0] for seed in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]
    digests = {order_digest(explorer.attempt(explorer.random(s))[0]) for s in range(100)}
    assert len(digests) > 90


# --- no false reports ---------------------------------------------------------------------------


def test_a_hundred_random_graphs_have_no_wait_without_a_witness_and_no_bad_interleaving() -> None:
    compiled = 0
    for seed in range(300):
        if compiled == 100:
            break
        try:
            plan = compile_plan(random_step_graph(seed))
        except GraphError:
            continue
        compiled += 1
        verify(plan)
        assert unwitnessed(plan) == []
        found = explore(plan, seeds=(seed, seed + 1), directed=seed % 8 == 0)
        assert found.failure is None, f"seed {seed}: {found.failure}"
    assert compiled == 100


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_nothing_is_found_in_many_more_random_graphs_of_any_size() -> None:
    for seed in range(20_000):
        try:
            plan = compile_plan(random_step_graph(seed, most_nodes=4 + seed % 6))
        except GraphError:
            continue
        verify(plan)
        assert unwitnessed(plan) == [], f"seed {seed}"
        found = explore(plan, seeds=range(seed, seed + 20))
        assert found.failure is None, f"seed {seed}: {found.failure}"


def unwitnessed(plan: Plan) -> list[str]:
    """Waits that no requirement's witness goes through."""
    hops = {
        (u, v, after - before)
        for edge in (*plan.edges, *plan.launch_order)
        for (u, before), (v, after) in zip(edge.witness, edge.witness[1:], strict=False)
    }
    return [
        f"{wait.source} → {wait.target}"
        for wait in plan.waits
        if (wait.source, wait.target, wait.distance) not in hops
    ]


# --- real ops -----------------------------------------------------------------------------------


def test_recording_ops_of_random_graphs_give_the_serial_histories_under_every_seed() -> None:
    for seed in range(0, 60):
        try:
            plan = compile_plan(random_step_graph(seed))
            plan = with_graph(plan, recording(plan.graph))
            expected = kept(plan, "serial")
        except GraphError:
            continue
        found = explore_nodes(
            plan,
            lambda executor, plan=plan: kept(plan, executor),  # type: ignore[misc]
            expected=expected,
            seeds=range(3),
        )
        assert found.failure is None, f"seed {seed}: {found.failure}"


def kept(plan: Plan, executor: Any) -> Any:
    """All histories, and what the states end as."""
    states = recorded_states(plan.graph)
    report = run(plan, executor=executor, steps=5, states=states, keep=list(plan.graph.values))
    return report.kept, states


def test_an_access_that_nobody_declared_is_told_from_a_race() -> None:
    hidden = [0]

    @node(stream="compute", writes="x")
    def make(ctx: OpContext = context()) -> int:
        hidden[0] = ctx.step
        return ctx.step

    @node(stream="copy", writes="y")
    def use(x: int) -> int:
        return x + 100 * hidden[0]

    plan = compile_plan(step_graph(make, use))

    def outcome(executor: Any) -> list[int]:
        return list(run(plan, executor=executor, steps=4, keep=["y"]).kept["y"])

    found = explore_nodes(plan, outcome, expected=outcome("serial"), seeds=range(20))
    assert found.failure is not None
    assert found.failure.hazard == "UNDECLARED"
    assert "an op touches what it does not declare" in str(found.failure)


@pytest.mark.parametrize("early", [True, False])
def test_a_reader_in_the_middle_of_a_write_gets_nothing_that_it_could_use(early: bool) -> None:
    """Not even where the writer's code has run and the datum is there already."""

    @node(stream="compute", writes="x")
    def make(ctx: OpContext) -> int:
        return ctx.step

    @node(stream="copy", writes="y")
    def use(x: int) -> int:
        return x + 1

    plan = replace(compile_plan(step_graph(make, use)), waits=())
    held = Interleaved(schedule=HeldBack("make.device", 1, "end"), early=early)
    with pytest.raises(NodeFailure, match=r"make\.device of step 1 is writing x"):
        run_unverified(plan, held, RunArguments(steps=3))
    assert held.runs[0].failure is not None


def test_what_is_being_written_cannot_be_read() -> None:
    unreadable: Any = Unreadable("x", "make.device", 3)
    uses: list[Callable[[], object]] = [
        lambda: unreadable + 1,
        lambda: unreadable.shape,
        lambda: unreadable[0],
        lambda: bool(unreadable),
        lambda: unreadable == 1,
        lambda: list(unreadable),
    ]
    for use in uses:
        with pytest.raises(InterleavingFailed, match=r"make\.device of step 3 is writing x"):
            use()


# --- the decode engine --------------------------------------------------------------------------

REGEX = GrammarSpec.from_request({"regex": "[a-z]{2,9}( [0-9]{1,3}){0,2}"})
PARAMS = [
    SamplingParams(max_tokens=3, ignore_eos=True),
    SamplingParams(max_tokens=4, structured_outputs=REGEX),
    SamplingParams(max_tokens=2, temperature=0.8, seed=3),
]
SIZES: dict[str, Any] = {
    "vocab_size": serving_testing.VOCAB,
    "max_position_embeddings": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_hidden_layers": 1,
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Depth 2, a drafter, grammars; three requests for two rows; 7 steps."""
    with pytest.MonkeyPatch.context() as patch:

        def pair(dtype: torch.dtype, **_: object) -> tuple[Any, Any]:
            return tiny_model("llama", 0, dtype, **SIZES), tiny_model("llama", 0, dtype, **SIZES)

        patch.setattr(serving_testing, "tiny_pair", pair)
        return tiny_engine(
            TinyConfig(
                depth=2,
                draft_tokens=2,
                structured=True,
                max_rows=2,
                token_budget=16,
                num_blocks=40,
                context=32,
            )
        )


@pytest.fixture(scope="module")
def served(engine: Engine) -> Callable[[Any], list[Any]]:
    """Tokens and counts of every request, by a given executor."""
    tokenizer = tiny_tokenizer(serving_testing.VOCAB)  # trained once: it is slow

    def outcome(executor: Any) -> list[Any]:
        engine.executor = executor
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(serving_testing, "tiny_tokenizer", lambda _: tokenizer)
            requests = [
                tiny_request(uid, [5 + uid, 9], params, context=32)
                for uid, params in enumerate(PARAMS)
            ]
        tokens = serve(engine, requests)
        return [
            (ids, request.drafted, request.accepted, request.finish_reason)
            for ids, request in zip(tokens, requests, strict=True)
        ]

    return outcome


def test_dozens_of_schedules_of_the_full_decode_pipeline_give_the_serial_tokens(
    engine: Engine, served: Callable[[Any], list[Any]]
) -> None:
    expected = served("serial")
    assert [len(tokens) for tokens, *_ in expected] == [3, 4, 2]
    assert sum(drafted for _, drafted, *_ in expected) > 0
    found = explore_nodes(engine.plan, served, expected=expected, seeds=range(26))
    assert found.failure is None, str(found.failure)
    assert found.distinct >= 24


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_very_many_schedules_of_the_full_decode_pipeline_give_the_serial_tokens(
    engine: Engine, served: Callable[[Any], list[Any]]
) -> None:
    expected = served("serial")
    found = explore_nodes(engine.plan, served, expected=expected, seeds=range(100_000))
    assert found.failure is None, str(found.failure)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["waits 0", "waits 1", "staging"])
def test_a_fault_in_the_decode_plan_is_found_and_told_by_its_accesses(
    engine: Engine, served: Callable[[Any], list[Any]], fault: str
) -> None:
    sound = engine.plan
    expected = served("serial")
    if fault == "staging":
        wrong = replace(sound, slots={**sound.slots, "staging": 1})
        hazard, first, second = "WAR", "prepare_inputs.device", "prepare_inputs.host"
    else:
        index = int(fault[-1])
        wrong, wait = without_wait(sound, index), sound.waits[index]
        hazard, first, second = "RAW", "sample.device", "d2h_copy.device"
        if wait.target == "commit.host.advance":
            first, second = "d2h_copy.device", "commit.host.advance"

    def served_wrong(executor: Interleaved) -> list[Any]:
        return served(Unverified(wrong, executor))

    found = explore_nodes(wrong, served_wrong, expected=expected, seeds=range(40))
    assert found.failure is not None
    assert found.failure.hazard == hazard
    assert found.failure.first is not None
    assert found.failure.second is not None
    assert (found.failure.first.op, found.failure.second.op) == (first, second)
    assert "held back" in found.failure.schedule


def test_an_interleaved_run_is_an_executor_like_any_other() -> None:
    plan = compile_plan(decode())
    plan = with_graph(plan, recording(plan.graph))
    executor = Interleaved(seed=1)
    states = recorded_states(plan.graph)
    report = run(plan, executor=executor, steps=3, states=states, trace=True)
    assert report.steps == 3
    assert len(report.events) == 3 * len(plan.graph.vertices)
    (ran,) = executor.runs
    assert ran.steps == 3
    again = Interleaved(seed=1)
    run(plan, executor=again, steps=3, states=recorded_states(plan.graph))
    assert again.runs[0].actors == ran.actors


def test_a_schedule_is_asked_for_each_event() -> None:
    explorer = Explorer(copy_back(), 2)
    asked: list[Sequence[str]] = []

    class Noting(Priorities):
        def choose(self, run: Interleaving, enabled: Sequence[str]) -> str:
            asked.append(enabled)
            return super().choose(run, enabled)

    actors, failure = explorer.attempt(Noting(0, list(explorer.program.actors), 10))
    assert failure is None
    assert len(asked) == len(actors)


def test_a_plan_of_several_ranks_is_refused_by_all() -> None:
    nodes = [Ranked(Node("work", (Op(),)))]
    plan = compile_plan(ranked_graph(nodes, [], ranks=2))
    for asked in (explore, explore_exhaustively, lambda each: replay(each, 0)):
        with pytest.raises(GraphError, match="is of 2 ranks, which wait for each other"):
            asked(plan)


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_a_run_without_steps_is_refused_since_it_shows_nothing(steps: Any) -> None:
    broken = replace(copy_back(), waits=())
    for asked in (explore, explore_exhaustively, lambda plan, steps: replay(plan, 0, steps=steps)):
        with pytest.raises(GraphError, match="steps must be a whole number from 1"):
            asked(broken, steps=steps)


def test_no_search_of_a_plan_in_which_an_op_runs_away_is_complete() -> None:
    """Each of its runs of two steps is in order: in none of them anybody is far ahead."""
    nodes = [Node("a", (Op(writes=("x",)),)), Node("b", (Op(reads("x")),), actor="helper")]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", storage="fresh")], order="keep"))
    unbounded = replace(plan, waits=tuple(w for w in plan.waits if not is_bound(w)))
    assert unbounded != plan
    found = explore_exhaustively(unbounded)
    assert found.failure is not None
    assert (found.failure.hazard, found.complete) == ("BOUND", False)
    assert explore_exhaustively(plan).complete
