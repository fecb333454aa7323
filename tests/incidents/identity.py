"""C: a value without identity."""

from __future__ import annotations

import torch

from stepweave.executors.run import run
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.nodes.data import Edits, Mask, SampleRows
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.settling import settle_tokens
from stepweave.nodes.ops.windows import draw
from stepweave.policies.acceptance import Coupled
from stepweave.requests.batch import StepBatch
from stepweave.requests.stopping import StopChecker
from stepweave.requests.table import RequestTable
from stepweave.sampling.penalties import apply_penalties
from tests.graph.build import device, host, op, value
from tests.incidents.engines import (
    LETTERS,
    came_back,
    decoding,
    greedy,
    masks,
    matchers_for,
    pending,
    serve,
    structured,
    table_with,
    token,
)
from tests.incidents.incident import Derived, Incident, Mistake, Refusal, Told, planned_for
from tests.requests.memory_model import limits, request, settle


def drafts_of_its_own_are_taken() -> None:
    asked = structured(0, LETTERS)
    table = matchers_for(asked)
    a = token("a")
    [places] = masks([decoding(asked)], pending([a, a]), table)
    assert table.failures == {}
    assert all(a in place for place in places)


def drafts_of_another_batch() -> Told:
    """The hand-off was overwritten by drafts that carry another life of the row."""
    asked = structured(0, LETTERS)
    table = matchers_for(asked)
    drafts = pending([3, 3], generation=1)
    masks([decoding(asked, generation=2)], drafts, table)
    batch = StepBatch(4, (decoding(asked, generation=2),))
    [settled] = settle_tokens(table_with(asked), batch, came_back([3, 3, 3], 3, 2), table)
    assert settled.tokens == (), "nothing that those drafts led to is kept"
    return Told("the request's own error", settled.error or "")


def sample_rows(count: int, drafts: int) -> SampleRows:
    one = torch.ones(count, dtype=torch.int64)
    real = torch.ones(count, dtype=torch.float64)
    return SampleRows(
        batch_index=torch.arange(count),
        request_slot=torch.arange(count),
        window_start=one,
        first=one,
        drafts=torch.zeros(count, drafts, dtype=torch.int64),
        valid=one * drafts,
        forced=-one,
        draft_limit=one * drafts,
        logit_index=torch.arange(count * (drafts + 1)).view(count, drafts + 1),
        seeds=torch.arange(count),
        prompt=one,
        top_k=0 * one,
        temperature=0 * real,
        top_p=real,
        min_p=0 * real,
        tags=torch.stack([one, one], dim=1),
        edits=Edits(),
        draft_width=drafts,
        longest=3,
        greedy=True,
        structured=True,
        logprobs=-1,
    )


def drawn(rows: int, masked: int | None) -> torch.Tensor:
    """A step of so many rows, with masks of so many; mask j allows token j + 1 only."""
    mask = None
    if masked is not None:
        bits = torch.tensor([[2 << row] for row in range(masked) for _ in "ab"], dtype=torch.int32)
        mask = Mask(bits, torch.zeros(masked, dtype=torch.int64))
    found = draw(Coupled(), sample_rows(rows, 1), torch.zeros(rows, 2, 8), mask, History(rows, 4))
    return found.tokens[:, 0]


def sampled_without_masks() -> None:
    drawn(2, None)


def sampled_with_shifted_masks() -> None:
    drawn(3, 2)


def each_row_has_its_own_mask() -> None:
    assert drawn(3, 3).tolist() == [1, 2, 3]


def a_row_is_another_in_its_next_life() -> None:
    table = RequestTable(limits(max_rows=1))
    for uid in range(2):
        table.submit(request(uid, max_tokens=1))
    lives = []
    for step in range(6):
        batch = table.schedule(step)
        lives += [(row.request.uid, row.request_slot, row.generation) for row in batch.rows]
        settle(table, batch)
    assert lives == [(0, 0, 1), (1, 0, 2)]


def late_result() -> Told:
    """The old request has ended; a new one has its row, and the old drafts arrive."""
    old, new = structured(1, LETTERS), structured(2, LETTERS)
    requests, matchers = table_with(old, new), matchers_for(old, new)
    requests.finish(old, "cancelled")
    batch = StepBatch(4, (decoding(old),))
    assert settle_tokens(requests, batch, came_back([3, 3, 3], 3, 2), matchers) == (), (
        "it gets no more"
    )
    masks([decoding(new, generation=2)], pending([3, 3], generation=1), matchers)
    return Told("the request's own error", matchers.failures[new.uid])


def accepted(condensed: bool = True) -> StepGraph:
    """Accepted counts are gathered on the device by row; the host may condense the rows."""
    return StepGraph.build(
        [
            host("schedule", op("rows", "rows" if condensed else "", 300)),
            device("forward", op(cost=150), op("kv", "logits kv", 4000)),
            device("gather", op(cost=30), op("logits rows", "counts", 20)),
        ],
        [value("logits", "device"), value("counts", "device")],
        ["rows", "kv"],
        order="keep",
    )


def rows_stay_where_they_are() -> None:
    table = RequestTable(limits(max_rows=3, token_budget=64))
    for uid, tokens in enumerate((9, 2, 9)):
        table.submit(request(uid, max_tokens=tokens))
    places: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for step in range(12):
        batch = table.schedule(step)
        for row in batch.rows:
            places[row.request.uid].add(row.request_slot)
        settle(table, batch)
    assert places == {0: {0}, 1: {1}, 2: {2}}


def gaps_change_nothing() -> None:
    """More requests than the budget serves at once: rows sit out steps between their windows."""
    plain = serve(greedy(4), depth=1)
    gaps = serve(greedy(4), depth=3, executor="threads", draft_tokens=2, token_budget=7)
    assert gaps == plain


def placeholder_among_settled() -> None:
    StopChecker((), (), 8).push([5, -1], lambda ids: "")


def penalized(drafts: list[int]) -> torch.Tensor:
    """Place 1 of a window, with one draft before it, under a frequency penalty."""
    return apply_penalties(
        torch.zeros(1, 2, 6),
        torch.tensor([drafts]),
        torch.tensor([[2, 3, -1, -1]]),
        torch.tensor([1]),
        torch.tensor([1]),
        torch.ones(1),
        torch.zeros(1),
        torch.full((1,), 0.5),
    )[0, 1]


def placeholders_count_for_nothing() -> None:
    assert penalized([-1]).tolist() == [0, 0, 0, -0.5, 0, 0]
    assert penalized([3]).tolist() == [0, 0, 0, -1.0, 0, 0]
    plain = serve(greedy(2, frequency_penalty=1.5), depth=1)
    assert serve(greedy(2, frequency_penalty=1.5), depth=3, draft_tokens=2) == plain


def placeholder_as_index() -> None:
    """What the hand-written engine did."""
    torch.zeros(1, 6).scatter_add_(1, torch.tensor([[3, -1]]), torch.ones(1, 2))


def drafter(take: str) -> StepGraph:
    """A drafter that has nothing to do in odd steps, and a reader one step later."""

    def draft(ctx: OpContext) -> None:
        if ctx.step % 2 == 0:
            ctx.write("drafts", [ctx.step])

    def verify(ctx: OpContext) -> None:
        drafts = ctx.read("drafts")
        ctx.write("taken", drafts if take == "as it is" else drafts[0])

    return StepGraph.build(
        [
            Node("draft", (Op(writes=("drafts",), run=draft),)),
            Node("verify", (Op((Read("drafts", 1),), ("taken",), run=verify),)),
        ],
        [Value("drafts", "host", "slots", 2), Value("taken")],
        order="keep",
    )


def a_skipped_drafter_yields_none() -> None:
    for executor in ("serial", "threads"):
        done = run(compile_plan(drafter("as it is")), executor=executor, steps=6, keep=["taken"])
        assert done.kept["taken"] == [None, [0], None, [2], None, [4]]


def skipped_drafts_taken_for_real() -> None:
    run(compile_plan(drafter("the first")), executor="serial", steps=6)


INCIDENTS = [
    Incident(
        "C1",
        "vLLM #54437, #56802",
        "the hand-off of drafts had one slot without a label; another batch overwrote it, and the "
        "mask failed open",
        "drafts carry the generation of their row and their step; masks fail closed",
        safe=drafts_of_its_own_are_taken,
        refusals=(
            Refusal(
                "drafts of another generation",
                drafts_of_another_batch,
                "the request's own error",
                ("request slot 0 holds drafts of generation 1, not 2",),
            ),
            Refusal(
                "a structured row without a mask",
                sampled_without_masks,
                "SW-MISSING-MASK",
                ("a row with a grammar came without its mask; it is not sampled",),
            ),
        ),
    ),
    Incident(
        "C2",
        "vLLM #49694, #49738",
        "the worker trimmed drafts, and mask rows shifted to the next request",
        "windows are never trimmed; each line of logits has the number of its mask, or of none",
        safe=each_row_has_its_own_mask,
        refusals=(
            Refusal(
                "masks of two rows for a step of three",
                sampled_with_shifted_masks,
                "SW-MISSING-MASK",
                ("it is not sampled, since its grammar would not be enforced",),
            ),
        ),
    ),
    Incident(
        "C3",
        "vLLM #29355, #42492",
        "a request with a used id met a late result of the old one",
        "each life of a request slot has a generation; results of an ended request are dropped",
        safe=a_row_is_another_in_its_next_life,
        refusals=(
            Refusal(
                "drafts of the old request arrive in the row of the new one",
                late_result,
                "the request's own error",
                ("holds drafts of generation 1, not 2",),
            ),
        ),
    ),
    Incident(
        "C4",
        "vLLM #45100, #53919, #51571",
        "accepted counts were gathered after rows had been condensed",
        "a request keeps its slot for life; where rows do move, the move is a "
        "write that waits for the gather",
        Derived(accepted, ("gather.device → schedule.host +1",)),
        (
            Mistake(
                "rows condensed, which is not declared",
                planned_for(lambda: accepted(condensed=False)),
                "SW-WAR-DEVICE-HOST",
                ("schedule.host of step i+1 may write it before gather.device of step i has read",),
            ),
        ),
        safe=rows_stay_where_they_are,
    ),
    Incident(
        "C5",
        "vLLM #46899, #32303",
        "stale −1 placeholders survived a scheduling gap and reached the embedding",
        "tokens reach the next step on the device, in the row's own entry, across any gap; no "
        "placeholder is an index",
        safe=gaps_change_nothing,
        refusals=(
            Refusal(
                "a placeholder among settled tokens",
                placeholder_among_settled,
                "ValueError",
                ("placeholder among settled tokens: [5, -1]",),
            ),
        ),
    ),
    Incident(
        "C6",
        "after vLLM #23569",
        "a frequency penalty scattered with −1 as an index: a device assert",
        "penalties count on the device what is settled and the drafts before a position; a "
        "placeholder adds nothing",
        safe=placeholders_count_for_nothing,
        refusals=(
            Refusal(
                "scattering with a placeholder (torch itself)",
                placeholder_as_index,
                "RuntimeError",
                ("out of bounds",),
            ),
        ),
    ),
    Incident(
        "C7",
        "vLLM #38711, #52762",
        "a skipped drafter left old drafts in place, which counted as real",
        "a skipped node yields none: the slot is emptied, and readers see that",
        safe=a_skipped_drafter_yields_none,
        refusals=(
            Refusal(
                "a reader that takes drafts without looking whether there are any",
                skipped_drafts_taken_for_real,
                "SW-NODE-FAILURE",
                ("verify.host", "NoneType"),
            ),
        ),
    ),
]
