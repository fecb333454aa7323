"""D: something optimistic where something settled was needed."""

from __future__ import annotations

from dataclasses import replace

from stepweave.graph.node import State
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.leases import pool_leases
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.nodes.ops.settling import settle_tokens
from stepweave.requests.batch import StepBatch
from stepweave.requests.counts import InFlight
from stepweave.requests.pools import KeyPool, one_class
from stepweave.requests.request import Request
from stepweave.requests.table import RequestTable
from tests.graph.build import device, host, op, value
from tests.incidents.engines import (
    CHOICE,
    came_back,
    decoding,
    greedy,
    serve,
    structured,
    table_with,
    told_by_mypy,
)
from tests.incidents.incident import Derived, Incident, Mistake, Refusal, without_wait
from tests.incidents.reused_early import stages
from tests.requests.memory_model import limits, request, settle

TIGHT = {"num_blocks": 14, "max_rows": 3, "token_budget": 16}


def preemption_keeps_counts_and_tokens() -> None:
    plain = serve(long_ones(), depth=1)
    asked = long_ones()
    tight = serve(asked, depth=3, executor="threads", draft_tokens=2, **TIGHT)
    assert tight == plain
    assert sum(each.preemptions for each in asked) > 0, "blocks were scarce enough to preempt"
    assert all(each.in_flight == InFlight() for each in asked)


def long_ones() -> list[Request]:
    return greedy(3, max_tokens=16)


def released_twice() -> None:
    pool = KeyPool(range(4), one_class())
    pool.grant(2, step=0)
    pool.release([0, 1], last_step=3)
    pool.release([1], last_step=4)


def a_window_frees_by_settled_counts() -> None:
    """Three steps are in flight, which may come to nine tokens; one of each is accepted."""
    table = RequestTable(limits(num_blocks=30, token_budget=32), sliding_window=4)
    asked = request(0, prompt=6, max_tokens=40, window=3)
    table.submit(asked)
    settle(table, table.schedule(0))
    flying = [table.schedule(step) for step in (1, 2, 3)]
    for step in range(4, 14):
        settled = asked.settled
        assert asked.upper_bound() - settled == 9
        flying.append(table.schedule(step))
        given_back = [index for index, block in enumerate(asked.blocks) if block == 0]
        # The next query is at the last settled token, and attends to three before it.
        assert all(4 * index + 3 < settled - 1 - 3 for index in given_back)
        settle(table, flying.pop(0))
    assert given_back == [0, 1, 2], "those that no query sees any more"


def refilled() -> StepGraph:
    """The old owner's last write and the new owner's prefill, of one block."""
    return StepGraph.build(
        [
            device("decode", op(cost=100), op("", "blocks", 4000)),
            device("prefill", op(cost=100), op("", "blocks", 2000), stream="prefill"),
        ],
        [],
        [State("blocks", keys="blocks")],
        order="keep",
    )


def a_block_rests_until_its_old_steps_are_done() -> None:
    two_deep = KeyPool(range(1), one_class(2))
    two_deep.grant(1, step=0)
    two_deep.release([0], last_step=5)
    assert two_deep.grant(1, step=6) is None
    assert two_deep.grant(1, step=7) == [0]
    assert pool_leases(compile_plan(refilled()), "blocks") == {("owner", "owner"): 1}


def history(carry: int = 2) -> StepGraph:
    """The scheduler recovers a request from what commit has settled."""
    return StepGraph.build(
        [
            host("schedule", op(f"settled@-{carry}", "batch", 300)),
            device("forward", op("batch", cost=150), op("kv", "sampled kv", 4000)),
            device("d2h_copy", op(cost=30), op("sampled", "copied", 40), stream="copy"),
            host("commit", op("copied", "settled", 200), offset=1),
        ],
        [
            value("batch"),
            value("sampled", "device"),
            value("copied", "pinned"),
            value("settled"),
        ],
        ["kv"],
        order="keep",
    )


def recovery_reads_what_is_settled() -> None:
    asked = request(0, prompt=5, max_tokens=20)
    asked.output_ids = [1, 2, 3]
    asked.in_flight.windows, asked.in_flight.drafts = 2, 4  # up to six tokens more
    asked.begin_prefill()
    assert asked.prefill_target == 7, "all settled tokens but the last"
    plain = serve(greedy(3, max_tokens=12), depth=1)
    assert serve(greedy(3, max_tokens=12), depth=3, draft_tokens=2, **TIGHT) == plain


def only_considered_drafts_count() -> None:
    asked = structured(0, CHOICE)
    asked.grammar = None
    row = decoding(asked)
    table = table_with(asked)
    [settled] = settle_tokens(table, StepBatch(4, (row,)), came_back([9, 8, -1], 2, 1), None)
    assert (settled.drafted, settled.accepted) == (1, 1), "the trimmed draft is in neither count"
    table.finish(asked, "cancelled")
    assert settle_tokens(table, StepBatch(5, (row,)), came_back([9, 8, 7], 3, 2), None) == ()
    counts = []
    for depth in (1, 3):
        some = [structured(uid, CHOICE) for uid in range(2)]
        serve(some, depth=depth, draft_tokens=2, structured=True)
        counts.append([(each.drafted, each.accepted) for each in some])
    assert counts[0] == counts[1]
    assert all(0 <= accepted <= drafted for drafted, accepted in counts[0])


def one_graph_at_every_depth() -> None:
    waits = []
    for depth in (1, 2, 3):
        plan = compile_plan(stages(depth))
        verify(plan)
        waits.append({(w.source, w.target, w.distance) for w in plan.waits})
    assert waits[0] == waits[1] == waits[2]


INCIDENTS = [
    Incident(
        "D1",
        "vLLM #48245, #57562",
        "a placeholder counter fell below zero on preemption and killed the engine",
        "each step in flight owns its counts; a preempted request resumes from settled tokens when "
        "no step carries it any more",
        safe=preemption_keeps_counts_and_tokens,
        refusals=(
            Refusal(
                "a block is given back once more",
                released_twice,
                "SW-POOL",
                ("key 1 was released, but no request holds it",),
            ),
        ),
    ),
    Incident(
        "D2",
        "vLLM #47728",
        "blocks behind a sliding window were freed on optimistic counts",
        "settled and optimistic counts are two types, and only settled ones free",
        safe=a_window_frees_by_settled_counts,
        refusals=(
            Refusal(
                "freeing up to what may be there",
                lambda: told_by_mypy("free"),
                "mypy",
                ('has incompatible type "OptimisticCount"; expected "SettledCount"',),
            ),
        ),
    ),
    Incident(
        "D3",
        "vLLM #45357",
        "a freed KV block was filled again while an old step still wrote it",
        "a block is in quarantine until the plan orders its old owner's last step before the new "
        "one's first",
        Derived(
            refilled,
            (
                "decode.device → prefill.device +0",
                "prefill.device → decode.device +1",
                "prefill.device → decode.host +64",  # no host op here ever waits for the streams
            ),
        ),
        (
            Mistake(
                "nobody waits for the old owner",
                without_wait("decode.device", "prefill.device"),
                "SW-WAW-DEVICE-DEVICE",
                ("prefill.device of step i may write it before decode.device of step i has",),
            ),
        ),
        safe=a_block_rests_until_its_old_steps_are_done,
    ),
    Incident(
        "D4",
        "vLLM #28787",
        "asynchronous mode, chunking and preemption together cut off the token history",
        "recovery reads what the commit of two steps ago settled, nothing newer",
        Derived(
            history,
            ("forward.device → d2h_copy.device +0", "d2h_copy.device → commit.host +0"),
            orders=("RAW settled: commit.host → schedule.host +2",),
        ),
        (
            Mistake(
                "recovery from the step before, which is in flight",
                lambda plan: replace(plan, graph=history(carry=1)),
                "SW-RAW-HOST-HOST",
                ("schedule.host of step i+1 may read it before commit.host of step i has written",),
            ),
        ),
        safe=recovery_reads_what_is_settled,
        refusals=(
            Refusal(
                "resuming at what may be there",
                lambda: told_by_mypy("resume"),
                "mypy",
                ('has incompatible type "OptimisticCount"; expected "SettledCount"',),
            ),
        ),
    ),
    Incident(
        "D5",
        "vLLM #44056, #37150",
        "the acceptance rate was reported too low: trimmed drafts stayed in the denominator",
        "the device counts the drafts that it considered; metrics add settled steps only",
        safe=only_considered_drafts_count,
        refusals=(
            Refusal(
                "a rate over what was scheduled",
                lambda: told_by_mypy("rate"),
                "mypy",
                ('has incompatible type "int"; expected "SettledCount"',),
            ),
        ),
    ),
    Incident(
        "D6",
        "vLLM #52071",
        "pipeline parallelism with speculation was wrong with asynchronous mode off",
        "one graph for every depth: the synchronous loop has the same waits",
        Derived(
            lambda: stages(1),
            (
                "stage0.device → stage1.device +0",
                "stage1.device → d2h_copy.device +0",
                "d2h_copy.device → commit.host +0",
            ),
        ),
        (
            Mistake(
                "the stages' wait in asynchronous mode only",
                without_wait("stage0.device", "stage1.device"),
                "SW-RAW-DEVICE-DEVICE",
                ("let stage1.device wait for stage0.device of the same step",),
            ),
        ),
        safe=one_graph_at_every_depth,
        encoded_as_graph=True,
    ),
]
