"""The node around every drafter: what it publishes, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.graph.errors import GraphError, StepweaveError
from stepweave.graph.node import State
from stepweave.graph.parameters import given, read, settings, update
from stepweave.nodes.data import DraftTable, Inputs, Proposal, Sampled
from stepweave.nodes.drafter import Drafter
from stepweave.nodes.options import DrafterOptions, Options
from stepweave.nodes.values import INPUTS, SAMPLED, SIZES
from stepweave.requests.batch import StepBatch
from tests.nodes.steps import chunk, decoding, drafts_of, inputs_of, progress_of, sampled_of

OWN: State[list[int]] = State("own", make=list)
K = 2


def proposing(propose: Callable[..., Proposal | None], **more: Any) -> Callable[..., DraftTable]:
    """The function of the node around such a drafter."""
    [draft] = Drafter("mine", "a drafter of a test", propose, **more).kind().device
    return draft


def offering(
    tokens: Sequence[Sequence[int]], valid: Sequence[int], probs: Tensor | None = None
) -> Callable[..., Proposal]:
    def propose(inputs: Inputs | None = read(INPUTS)) -> Proposal:
        return Proposal(torch.tensor(tokens), torch.tensor(valid), probs)

    return propose


BATCH = StepBatch(9, (decoding(2, generation=6), decoding(0, generation=4)))
BEFORE = drafts_of({0: [11, 12], 1: [13, 14], 2: [15, 16]})


def step(batch: StepBatch = BATCH) -> dict[str, Any]:
    progress = progress_of({0: (3, 6), 1: (4, 6), 2: (5, 6)})
    return {
        "inputs": inputs_of(batch, progress, BEFORE),
        "sampled": sampled_of([[7]] * len(batch.sampling)),
        "drafts": BEFORE,
        "forced": None,
        "agree": None,
    }


def test_a_proposal_is_published_with_the_generation_of_its_row_and_its_step() -> None:
    found = proposing(offering([[21, 22], [31, 32]], [2, 2]))(**step())
    assert found.tokens.tolist() == [[31, 32], [13, 14], [21, 22], [-1, -1], [-1, -1]]
    assert found.tags.tolist() == [[4, 9], [1, 3], [6, 9], [-1, -1], [-1, -1]]


@pytest.mark.parametrize(
    ("offered", "told"),
    [
        (3, "must return a `Proposal` or None, not 3"),
        (
            Proposal(torch.ones(2, 2), torch.tensor([2, 2])),
            "`tokens` .* not a tensor .* of float32",
        ),
        (Proposal(torch.tensor([[1, 2]]), torch.tensor([2, 2])), r"a tensor \[2, 2\] of integers"),
        (Proposal(torch.ones(2, 3).long(), torch.tensor([2, 2])), r"\[2, 2\] .* not .* \[2, 3\]"),
        (Proposal(torch.ones(2, 2).long(), torch.tensor([2])), r"`valid` .* \[2\] .* not .* \[1\]"),
        (Proposal([[1, 2], [3, 4]], torch.tensor([2, 2])), r"not \[\[1, 2\], \[3, 4\]\]"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_proposal_for_the_rows_of_the_step_is_refused(offered: Any, told: str) -> None:
    def propose(inputs: Inputs | None = read(INPUTS)) -> Any:
        return offered

    with pytest.raises(StepweaveError, match=told) as caught:
        proposing(propose)(**step())
    assert caught.value.code == "SW-RESULT"


def test_the_table_of_the_step_before_does_not_change() -> None:
    proposing(offering([[21, 22], [31, 32]], [2, 2]))(**step())
    assert BEFORE.tokens.tolist()[:3] == [[11, 12], [13, 14], [15, 16]]
    assert BEFORE.tags[2].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("valid", "published"),
    [([2, 0], [[21, 22], [-1, -1]]), ([1, 2], [[21, -1], [31, 32]])],
)
def test_a_draft_that_is_not_meant_is_an_explicit_none(
    valid: list[int], published: list[list[int]]
) -> None:
    found = proposing(offering([[21, 22], [31, 32]], valid))(**step())
    assert [found.tokens[2].tolist(), found.tokens[0].tolist()] == published


def test_a_row_is_offered_no_more_drafts_than_it_may_have() -> None:
    batch = StepBatch(9, (decoding(2), decoding(0, window=2), decoding(1, window=1)))
    found = proposing(offering([[21, 22], [31, 32], [41, 42]], [2, 2, 2]))(**step(batch))
    assert found.tokens.tolist()[:3] == [[31, -1], [-1, -1], [21, 22]]


def test_a_short_proposal_leaves_no_drafts_of_before_behind_it() -> None:
    found = proposing(offering([[21], [31]], [1, 1]))(**step())
    assert found.tokens.tolist()[:3] == [[31, -1], [13, 14], [21, -1]]


def test_without_a_proposal_the_rows_that_sampled_have_no_drafts() -> None:
    found = proposing(lambda: None)(**step())
    assert found.tokens.tolist()[:3] == [[-1, -1], [13, 14], [-1, -1]]
    assert found.tags[2].tolist() == [6, 9], "none, of this step"


def test_a_step_without_inputs_is_not_proposed_for_and_hands_on_the_same_table() -> None:
    def propose() -> Proposal | None:
        raise AssertionError("it is not called")

    assert proposing(propose)(inputs=None, sampled=None, drafts=BEFORE) is BEFORE


def test_a_step_that_samples_nothing_is_shown_to_the_drafter_and_changes_no_drafts() -> None:
    seen: list[Sampled | None] = []

    def propose(
        inputs: Inputs | None = read(INPUTS), sampled: Sampled | None = read(SAMPLED)
    ) -> Proposal | None:
        seen.append(sampled)
        return None

    batch = StepBatch(9, (chunk(0, [3, 4], samples=False),))
    given_inputs = inputs_of(batch, progress_of({}), BEFORE)
    found = proposing(propose)(inputs=given_inputs, sampled=None, drafts=BEFORE)
    assert found is BEFORE
    assert seen == [None]


def test_what_drafts_were_drawn_from_is_kept_by_row_where_somebody_compares() -> None:
    probs = torch.arange(8, dtype=torch.float32).view(2, 1, 4)
    kept = torch.full((5, K, 4), -5.0)
    draft = proposing(offering([[1], [2]], [1, 1], probs), draws=True)
    draft(**step(), draft_probs=kept)
    assert kept[2, 0].tolist() == [0, 1, 2, 3]
    assert kept[0, 0].tolist() == [4, 5, 6, 7]
    assert (kept[1] == -5).all()
    assert (kept[:, 1] == -5).all()
    before = kept.clone()
    draft(**step(), draft_probs=None)
    assert torch.equal(kept, before)


def test_what_a_drafter_asks_for_is_asked_for_by_its_node_and_passed_on() -> None:
    class Mine(DrafterOptions):
        bias: int = 0

    def propose(
        inputs: Inputs | None = read(INPUTS),
        own: list[int] = update(OWN),
        sizes: Any = given(SIZES),
        chosen: Mine = settings(Mine),
    ) -> Proposal | None:
        own.append(chosen.bias + sizes)
        return None

    kind = Drafter("mine", "a drafter of a test", propose, options=Mine).kind()
    [draft] = kind.device
    asked = {name: each.role for name, each in draft.parameters.items()}
    assert asked == {
        "inputs": "read",
        "sampled": "read",
        "drafts": "read",
        "forced": "read",
        "agree": "resource",
        "meetings": "update",
        "own": "update",
        "sizes": "resource",
        "chosen": "options",
    }
    own: list[int] = []
    draft(**step(), own=own, sizes=30, chosen=Mine(bias=4))
    assert own == [34]
    assert (kind.options, kind.host) == (Mine, ())


def test_only_a_drafter_that_draws_keeps_what_it_drew_from() -> None:
    [plain] = Drafter("mine", "x", lambda: None).kind().device
    [draws] = Drafter("mine", "x", lambda: None, draws=True).kind().device
    assert "draft_probs" not in plain.parameters
    assert draws.parameters["draft_probs"].optional


def test_a_parameter_that_is_called_like_one_of_the_node_must_be_the_same() -> None:
    def propose(drafts: Sampled | None = read(SAMPLED)) -> None: ...

    with pytest.raises(GraphError, match="its parameter 'drafts' is the node's own"):
        Drafter("mine", "x", propose).kind()


def test_options_must_say_how_many_tokens() -> None:
    wrong: Any = Options
    with pytest.raises(TypeError, match="must derive from DrafterOptions, Options does not"):
        Drafter("mine", "x", lambda: None, options=wrong)


# --- which tokens of its first pass are real


def first_two(batch: StepBatch, counts: Sequence[int]) -> list[tuple[int, int]]:
    """From line 3 · row on, as many as the row got."""
    return [(3 * at, count) for at, count in enumerate(counts)]


def keeping(batch: StepBatch, counts: Tensor | None) -> Any:
    [keep] = Drafter("mine", "x", lambda: None, spans=first_two).kind().host
    return keep(batch=batch, host_counts=counts, kept=torch.zeros(12, dtype=torch.int64))


def test_the_real_tokens_of_a_first_pass_are_listed_row_by_row() -> None:
    found = keeping(BATCH, torch.tensor([3, 1, 99, 99]))
    assert found.token_index.tolist() == [0, 1, 2, 3]
    assert found.query_lens == (3, 1), "counts of rows that the step has not got are not read"


def test_an_empty_step_has_no_first_pass() -> None:
    assert keeping(StepBatch(9), torch.tensor([3, 1])) is None


def test_a_step_that_sampled_nothing_has_no_counts_to_go_by() -> None:
    found = keeping(StepBatch(9, (chunk(0, [3, 4], samples=False),)), None)
    assert (found.token_index.tolist(), found.query_lens) == ([], ())
