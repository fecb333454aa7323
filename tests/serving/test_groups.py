"""Rows in groups: no row is in two steps at a time, and tokens and counts are those of one group.

The graphs here hand tokens on after K steps, as stages of a model do that work on K steps at once.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stepweave.executors.errors import NodeFailure
from stepweave.policies.chosen import Policies
from stepweave.policies.scheduling import DecodesFirst, Groups
from stepweave.requests.request import SamplingParams
from stepweave.testing.engines import TinyConfig, serve, tiny_engine, tiny_requests
from tests.serving.matrix import GRAMMARS, METHODS, SAMPLING, SITUATIONS, Cell, asked, in_turn, run
from tests.serving.test_matrix import counts

GROUPS = (1, 2, 3, 4)
FEATURES = [
    (method, grammar, sampling, situation)
    for method, situation, grammar, sampling in itertools.product(
        METHODS, SITUATIONS, GRAMMARS, SAMPLING
    )
]
CELLS = [Cell(groups, *cell) for groups in GROUPS for cell in FEATURES]


def handed_on_after(groups: int, cell: Cell) -> Mapping[str, Any]:
    """The changes to a pipeline's file with which what a step hands on is read so much later."""
    reads = {"nodes.prepare_inputs.reads.progress": f"progress@-{groups}"}
    if cell.method is not None:
        reads["nodes.prepare_inputs.reads.drafts"] = f"drafts@-{groups}"
        if cell.grammar != "no grammar":
            reads["nodes.bitmask.reads.host_drafts"] = f"host_drafts@-{groups}"
    return reads


def check(cell: Cell) -> None:
    check_groups(cell, [cell.depth])


def check_groups(cell: Cell, groups: Sequence[int]) -> None:
    """A cell in several numbers of groups, compared with one serial run of it."""
    requests = asked(cell)
    one = run(cell, requests, depth=1, executor="serial", checked=False)
    for number in groups:
        found = run(
            cell,
            requests,
            depth=number,
            executor="threads",
            policies=Policies(scheduling=Groups(groups=number)),
            settings=handed_on_after(number, cell),
        )
        assert [each.error for each in found.requests] == [None] * len(requests)
        assert [r.output_ids for r in found.requests] == [r.output_ids for r in one.requests]
        assert [r.logprobs for r in found.requests] == [r.logprobs for r in one.requests]
        assert counts(found) == counts(one)


LAST_IN_TURN = Cell(4, None, "mixed", "plain", "preemption")
"""The row whose turn it is came last, and sits out; only the turn of another can free memory."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cell", [*random.Random(4).sample(CELLS, 6), LAST_IN_TURN], ids=str)
def test_tokens_and_counts_are_those_of_one_group(cell: Cell) -> None:
    check(cell)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", [Cell(0, *cell) for cell in FEATURES], ids=str)
def test_every_cell_in_groups(cell: Cell) -> None:
    check_groups(cell, GROUPS[1::2] if in_turn(cell, 2) else GROUPS[::2])


def test_each_step_has_its_part_of_the_rows_and_none_of_a_step_in_flight() -> None:
    engine = tiny_engine(
        TinyConfig(depth=3, max_rows=7, policies=Policies(scheduling=Groups(groups=3)))
    )
    table = engine.new_table()
    requests = tiny_requests([SamplingParams(max_tokens=20, ignore_eos=True)] * 7, longest=4)
    for each in requests:
        table.submit(each)
    seen: list[frozenset[int]] = []
    own = table.schedule

    def schedule(step: int, drafts: int | None = None) -> Any:
        batch = own(step, drafts)
        if batch and all(row.decodes for row in batch.rows):
            seen.append(frozenset(row.request.uid for row in batch.rows))
        return batch

    table.schedule = schedule  # type: ignore[method-assign]
    engine.run(table)
    assert max(map(len, seen)) == 3, "a third of seven rows"
    assert len(set().union(*seen[:3])) == 7, "the three groups are all of the rows"
    assert all(not a & (b | c) for a, b, c in zip(seen, seen[1:], seen[2:], strict=False))


def test_a_policy_that_runs_a_row_before_its_tokens_are_handed_on_is_refused() -> None:
    cell = Cell(2, None, "no grammar", "plain", "chunked prefill")
    engine = tiny_engine(
        TinyConfig(depth=2, policies=Policies(scheduling=DecodesFirst())),
        settings=handed_on_after(2, cell),
    )
    with pytest.raises(NodeFailure, match="hands tokens on after 2: leave rows in flight out"):
        serve(engine, tiny_requests([SamplingParams(max_tokens=5)]))
