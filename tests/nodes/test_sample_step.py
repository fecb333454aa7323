"""sample: the tokens of a step and what it hands on, against a plain program."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from stepweave.graph.errors import StepweaveError
from stepweave.nodes.data import Inputs, Mask, Progress, Sampled
from stepweave.nodes.ops.history import History
from stepweave.nodes.sample import compares, sample
from stepweave.policies.acceptance import Coupled, Rejection, Synthetic
from stepweave.policies.policy import Policy
from stepweave.requests.batch import StepBatch
from stepweave.sampling.windows import Verified, Windows
from stepweave.structured.bitmask import row_allowing
from tests.nodes.steps import (
    VOCAB,
    chunk,
    decoding,
    drafts_of,
    history,
    inputs_of,
    progress_of,
    some,
)

PROGRESS = {0: (40, 3), 1: (41, 6), 2: (42, 6), 3: (43, 9)}


def best(tokens: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits `[S, W, V]` whose best token at each window position is this one."""
    logits = torch.zeros(len(tokens), len(tokens[0]), VOCAB)
    for row, window in enumerate(tokens):
        for at, token in enumerate(window):
            logits[row, at, token] = 5.0
    return logits


def sampled(
    inputs: Inputs | None, logits: torch.Tensor | None, past: History | None = None, **more: Any
) -> tuple[Sampled | None, Progress]:
    asked: dict[str, Any] = {"prompt_logits": None, "mask": None, "progress": progress_of(PROGRESS)}
    found, progress = some(
        sample(
            inputs=inputs,
            logits=logits,
            history=past or history(),
            draft_probs=None,
            agree=None,
            vocab_size=VOCAB,
            sources={("sample", "logits"): "'mine' of node 'k'"},
            **{"rule": Coupled(), **asked, **more},
        )
    )
    return found, some(progress)


def made(rows: StepBatch, drafts: dict[int, list[int]]) -> Inputs:
    return inputs_of(rows, progress_of(PROGRESS), drafts_of(drafts))


def test_drafts_are_kept_up_to_the_first_that_differs_and_one_token_follows() -> None:
    batch = StepBatch(9, (decoding(2), decoding(0), decoding(1)))
    inputs = made(batch, {2: [21, 22], 0: [31, 32], 1: [11, 12]})
    found, progress = sampled(inputs, best([[21, 22, 23], [31, 33, 34], [14, 12, 13]]))
    assert some(found).tokens.tolist() == [[21, 22, 23], [31, 33, -1], [14, -1, -1]]
    assert some(found).counts.tolist() == [3, 2, 1]
    assert some(found).drafted.tolist() == [2, 2, 2]
    assert some(found).logprobs is None
    assert progress.last_token.tolist()[:4] == [33, 14, 23, 43], "row 3 sat out and keeps its own"
    assert progress.computed.tolist()[:4] == [3 + 2, 6 + 1, 6 + 3, 9]


@pytest.mark.parametrize(
    ("asked", "words", "reads"),
    [
        ({}, (), 0),
        ({"temperature": 0.7, "logit_bias": {3: 1.0}, "min_tokens": 2}, (), 0),
        ({"repetition_penalty": 1.5}, (), 1),
        ({"temperature": 1.0, "xtc_probability": 0.5}, (), 0),
        ({"dry_multiplier": 1.0, "dry_penalty_last_n": 0}, (), 0),
        ({"dry_multiplier": 1.0, "no_repeat_ngram_size": 3}, (), 1),
        ({}, ((3, 4),), 1),
    ],
)
def test_the_text_so_far_is_gathered_for_edits_that_read_it_only(
    asked: dict[str, Any],
    words: tuple[tuple[int, ...], ...],
    reads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered: list[int] = []

    def of(self: History, request_slot: torch.Tensor, longest: int) -> torch.Tensor:
        gathered.append(longest)
        return self.tokens[request_slot, :longest]

    monkeypatch.setattr(History, "of", of)
    row = decoding(2, **asked)
    row = row._replace(request=replace(row.request, bad_words=words))
    inputs = made(StepBatch(9, (row, decoding(0))), {2: [21, 22], 0: [31, 32]})
    sampled(inputs, best([[21, 22, 23], [31, 32, 33]]))
    assert len(gathered) == reads


def test_rows_without_logits_are_refused_since_their_requests_would_never_end() -> None:
    inputs = made(StepBatch(9, (decoding(2),)), {2: [21]})
    with pytest.raises(StepweaveError, match="its logits, 'mine' of node 'k', are None") as caught:
        sampled(inputs, None)
    assert caught.value.code == "SW-RESULT"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (torch.zeros(1, 3, VOCAB - 1), rf"not a tensor \[1, 3, {VOCAB - 1}\] of float32"),
        (torch.zeros(1, 2, VOCAB), rf"not a tensor \[1, 2, {VOCAB}\] of float32"),
        (torch.zeros(3, VOCAB), rf"not a tensor \[3, {VOCAB}\] of float32"),
        (torch.zeros(1, 3, VOCAB).long(), rf"not a tensor \[1, 3, {VOCAB}\] of int64"),
        ((torch.zeros(1, 3, VOCAB),), r"not \(tensor\("),
        ("text", "not 'text'"),
    ],
)
def test_what_are_no_logits_of_the_rows_is_refused_with_the_node_that_wrote_it(
    wrong: Any, told: str
) -> None:
    inputs = made(StepBatch(9, (decoding(2),)), {2: [21, 22]})
    must = rf"its logits, 'mine' of node 'k', must be a tensor \[1, 3, {VOCAB}\] of floating-point"
    with pytest.raises(StepweaveError, match=f"{must} numbers, {told}") as caught:
        sampled(inputs, wrong)
    assert caught.value.code == "SW-RESULT"


class Odd(Policy):
    """An acceptance rule that returns something else."""

    exact: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    couples: ClassVar[bool] = False

    tokens: Any = None
    counts: Any = None

    def verify(self, windows: Windows) -> Any:
        return None if self.tokens is None else Verified(self.tokens, self.counts)


@pytest.mark.parametrize(
    ("tokens", "counts", "told"),
    [
        (None, None, "acceptance policy 'Odd': `verify` must return a `Verified`, not None"),
        (torch.ones(1, 2).long(), torch.tensor([1]), r"`tokens` .* \[1, 3\] .* not .* \[1, 2\]"),
        (torch.ones(1, 3), torch.tensor([1]), "`tokens` .* not a tensor .* of float32"),
        (torch.ones(1, 3).long(), torch.tensor([1, 1]), r"`counts` .* \[1\] .* not .* \[2\]"),
    ],
)
def test_what_a_rule_returns_has_the_shape_of_the_windows(
    tokens: Any, counts: Any, told: str
) -> None:
    inputs = made(StepBatch(9, (decoding(2),)), {2: [21, 22]})
    with pytest.raises(StepweaveError, match=told):
        sampled(inputs, best([[21, 22, 23]]), rule=Odd(tokens=tokens, counts=counts))


def test_the_tails_of_the_step_before_do_not_change() -> None:
    before = progress_of(PROGRESS)
    sampled(made(StepBatch(9, (decoding(2),)), {2: [21]}), best([[21, 22, 23]]), progress=before)
    assert before.last_token.tolist()[:4] == [40, 41, 42, 43]


def test_the_history_gets_the_settled_tokens_at_their_positions_and_no_others() -> None:
    past = history()
    batch = StepBatch(9, (decoding(2), decoding(0)))
    sampled(made(batch, {2: [21, 22]}), best([[21, 24, 25], [33, 1, 1]]), past)
    assert past.tokens[2, :12].tolist() == [0] * 7 + [21, 24, 0, 0, 0]
    assert past.tokens[0, :12].tolist() == [0] * 4 + [33] + [0] * 7
    assert past.tokens[[1, 3]].count_nonzero() == 0


def test_a_step_without_inputs_hands_on_the_same_tails() -> None:
    progress = progress_of(PROGRESS)
    found, after = sampled(None, None, progress=progress)
    assert found is None
    assert after is progress


def test_a_step_that_samples_nothing_hands_on_the_same_tails() -> None:
    progress = progress_of(PROGRESS)
    inputs = made(StepBatch(9, (chunk(0, [3, 4], samples=False),)), {})
    found, after = sampled(inputs, None, progress=progress)
    assert found is None
    assert after is progress


def test_a_chunk_that_ends_a_prompt_gets_its_first_token() -> None:
    inputs = made(StepBatch(9, (chunk(0, [3, 4, 5], start=4),)), {})
    found, progress = sampled(inputs, best([[17]]))
    assert some(found).tokens.tolist() == [[17]]
    assert some(found).drafted.tolist() == [0]
    assert (int(progress.last_token[0]), int(progress.computed[0])) == (17, 7)


def test_a_forced_token_is_handed_on_and_the_draw_beside_it_is_not_changed() -> None:
    batch = StepBatch(9, (decoding(1), chunk(0, [3, 4], start=4, forced=33)))
    found, progress = sampled(made(batch, {1: [11]}), best([[11, 12, 13], [17, 17, 17]]))
    assert some(found).tokens.tolist() == [[11, 12, -1], [33, -1, -1]]
    assert some(found).counts.tolist() == [2, 1]
    assert (int(progress.last_token[0]), int(progress.computed[0])) == (33, 6)


def test_padding_changes_no_row_of_a_request() -> None:
    past, batch = history(), StepBatch(9, (decoding(2),))
    padded = StepBatch(9, batch.rows, padding=2)
    plain_found, plain = sampled(made(batch, {2: [21]}), best([[21, 22, 23]]))
    found, progress = sampled(
        made(padded, {2: [21]}), best([[21, 22, 23], [1, 1, 1], [2, 2, 2]]), past
    )
    assert some(found).tokens[0].tolist() == some(plain_found).tokens[0].tolist() == [21, 22, -1]
    assert progress.last_token[:4].tolist() == plain.last_token[:4].tolist()
    assert progress.computed[:4].tolist() == plain.computed[:4].tolist()
    assert past.tokens[[0, 1, 3]].count_nonzero() == 0


def test_a_draft_outside_the_vocabulary_is_not_considered() -> None:
    found, _ = sampled(made(StepBatch(9, (decoding(2),)), {2: [VOCAB, 22]}), best([[21, 22, 23]]))
    assert some(found).tokens.tolist() == [[21, -1, -1]]
    assert some(found).drafted.tolist() == [0]


def test_a_mask_decides_the_token_and_cuts_the_drafts_behind_the_first_it_refuses() -> None:
    row = decoding(2, structured=True)
    only = torch.stack(
        [torch.tensor(row_allowing(allowed, VOCAB)) for allowed in ([21, 5], [6, 7], [0])]
    )
    mask = Mask(only, torch.tensor([1]))
    logits = best([[21, 22, 23]])
    logits[0, 1, 7] = 1.0  # the best of what the grammar leaves
    found, progress = sampled(made(StepBatch(9, (row,)), {2: [21, 22]}), logits, mask=mask)
    assert some(found).tokens.tolist() == [[21, 7, -1]]
    assert some(found).drafted.tolist() == [1], "what the grammar cut is not counted"
    assert (int(progress.last_token[2]), int(progress.computed[2])) == (7, 8)


def test_log_probabilities_are_the_models_own_whatever_the_request_changes() -> None:
    row = decoding(2, logprobs=2, logit_bias={17: 50.0})
    logits = torch.randn(1, 3, VOCAB, generator=torch.Generator().manual_seed(3))
    found, _ = sampled(made(StepBatch(9, (row,)), {}), logits)
    assert some(found).tokens[0, 0] == 17, "by its bias"
    told = some(some(found).logprobs)
    plain = [float(x) for x in logits[0, 0]]
    total = math.log(sum(math.exp(x) for x in plain))
    ranked = sorted(range(VOCAB), key=lambda token: -plain[token])
    assert float(told.logprob[0]) == pytest.approx(plain[17] - total, abs=1e-5)
    assert int(told.rank[0]) == 1 + ranked.index(17)
    assert told.top_tokens[0].tolist() == ranked[:2]
    assert told.top_logprobs[0].tolist() == pytest.approx(
        [plain[token] - total for token in ranked[:2]], abs=1e-5
    )
    assert told.logprob[1:].isnan().all(), "no token, no log-probability"


def test_prompt_tokens_are_told_though_nothing_is_sampled() -> None:
    progress = progress_of(PROGRESS)
    asked: dict[str, Any] = {"params": {"prompt_logprobs": 1}, "prompt_targets": (4, 5)}
    inputs = made(StepBatch(9, (chunk(0, [3, 4], samples=False, following=5, **asked),)), {})
    logits = best([[4, 9]])[0]
    found, after = sampled(inputs, None, prompt_logits=logits, progress=progress)
    assert after is progress
    assert some(found).tokens.shape == (0, 1)
    told = some(some(found).prompt)
    hit = 5 - math.log(math.exp(5) + VOCAB - 1)
    assert told.logprob.tolist() == pytest.approx([hit, hit - 5], abs=1e-5)
    assert told.rank.tolist() == [1, 2]
    assert told.top_tokens.tolist() == [[4], [9]]


@pytest.mark.parametrize(
    ("rule", "needs"), [(Coupled(), False), (Rejection(), True), (Synthetic(rates=(0.5,)), False)]
)
def test_what_drafts_were_drawn_from_is_read_where_the_rule_compares(
    rule: Any, needs: bool
) -> None:
    assert compares(rule) is needs


@pytest.mark.parametrize("seed", range(20))
def test_greedy_steps_are_those_of_a_plain_program(seed: int) -> None:
    rnd = random.Random(seed)
    slots = rnd.sample(range(4), rnd.randrange(1, 5))
    batch = StepBatch(9, tuple(decoding(slot) for slot in slots))
    wanted = [[rnd.randrange(3) for _ in range(3)] for _ in slots]
    drafts = {slot: [rnd.choice([-1, 0, 1, 2, VOCAB]) for _ in range(2)] for slot in slots}
    past, before = history(), progress_of(PROGRESS)
    found, progress = sampled(made(batch, drafts), best(wanted), past, progress=before)
    for index, slot in enumerate(slots):
        tokens: list[int] = []
        for at in range(3):
            tokens.append(wanted[index][at])
            if at == 2 or drafts[slot][at] != wanted[index][at]:
                break
        computed = PROGRESS[slot][1]
        assert some(found).tokens[index].tolist() == tokens + [-1] * (3 - len(tokens))
        assert int(progress.last_token[slot]) == tokens[-1]
        assert int(progress.computed[slot]) == computed + len(tokens)
        written = past.tokens[slot, computed + 1 : computed + 1 + len(tokens)]
        assert written.tolist() == tokens
