"""Every combination of features gives the reference's tokens, at every depth, with equal counts.

The suite draws from cells that cover every pair of features; `pytest -m nightly` runs every cell.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from allpairspy import AllPairs
from torch import Tensor

from stepweave.requests.request import SamplingParams, TokenLogprob
from tests.serving.matrix import (
    CHANGES_TOKENS,
    DEPTHS,
    FORKED,
    GRAMMARS,
    KEPT,
    METHODS,
    SAMPLING,
    SHORT_OF_BLOCKS,
    SITUATIONS,
    SWAPPED,
    Cell,
    CellRequest,
    Outcome,
    asked,
    in_turn,
    plainly,
    run,
)

AXES: list[list[Any]] = [
    list(axis) for axis in (DEPTHS, METHODS, GRAMMARS, SAMPLING, SITUATIONS, KEPT)
]

OFF: dict[str, Any] = {"xtc_probability": 0.0, "dry_multiplier": 0.0, "no_repeat_ngram_size": 0}


def pairwise() -> list[Cell]:
    return [Cell(*cell) for cell in AllPairs(AXES)]


def check(cell: Cell) -> None:
    check_depths(cell, [cell.depth])


def check_depths(cell: Cell, depths: Sequence[int], checked: bool = True) -> None:
    """A cell at several depths, compared with one serial run of it, in checking mode if `checked`.

    That takes longer than all others together.
    """
    requests = asked(cell)
    serial = run(cell, requests, depth=1, executor="serial", checked=checked)
    check_outcome(cell, requests, serial)
    for depth in depths:
        pipelined = run(cell, requests, depth=depth, executor="threads")
        check_outcome(cell, requests, pipelined)
        check_same(cell, serial, pipelined)


def check_outcome(cell: Cell, requests: Sequence[CellRequest], outcome: Outcome) -> None:
    """The reference's tokens, where the rule promises them, and log-probabilities."""
    for request, each in zip(outcome.requests, requests, strict=True):
        assert request.error is None
        if not cell.policies.acceptance.exact and each.params.temperature:
            continue
        expected = plainly(each, cell.kept)
        assert request.output_ids == expected.tokens
        check_logprobs(request.logprobs, each.params.logprobs, expected.tokens, expected.log_probs)
        prompt = list(each.prompt[1:])
        check_logprobs(
            request.prompt_logprobs,
            each.params.prompt_logprobs,
            prompt,
            [] if expected.prompt_log_probs is None else list(expected.prompt_log_probs),
        )


def check_same(cell: Cell, serial: Outcome, pipelined: Outcome) -> None:
    """What does not depend on the depth, and that both met what the cell is about."""
    policies = cell.policies
    if not policies.acceptance.exact:
        check_alike(serial, pipelined)
    if policies.drafting.own:
        assert counts(serial) == counts(pipelined)
    # Some of `mixes` draft less than others, and may leave forks the blocks they need.
    short = cell.situation in SHORT_OF_BLOCKS and (cell.situation, cell.sampling) != SPARING
    if short:
        assert serial.preemptions or pipelined.preemptions, "this cell is about preemption"
    if short and cell.situation in SWAPPED:
        assert serial.swapped_out or pipelined.swapped_out, "this cell is about swapping"
    if cell.situation == "prefix cache":
        assert serial.prefix_hits > 0
        assert pipelined.prefix_hits > 0
    if cell.situation in FORKED and serial.requests[1].params.prompt_logprobs is None:
        assert min(serial.forked_tokens, pipelined.forked_tokens) > 0
    if cell.method not in (None, "ngram", "suffix") and cell.grammar == "no grammar":
        assert sum(request.drafted for request in serial.requests) > 0


def counts(outcome: Outcome) -> list[tuple[int, int]]:
    return [(request.drafted, request.accepted) for request in outcome.requests]


def check_alike(one: Outcome, other: Outcome) -> None:
    """Tokens, and where they were asked for their log-probabilities, are the same in both."""
    for first, second in zip(one.requests, other.requests, strict=True):
        assert first.output_ids == second.output_ids
        told = [
            [each.logprob for each in (*request.logprobs, *request.prompt_logprobs)]
            for request in (first, second)
        ]
        assert told[0] == pytest.approx(told[1], abs=1e-5)


def check_logprobs(
    found: list[TokenLogprob], wanted: int | None, tokens: list[int], log_probs: list[Tensor]
) -> None:
    if wanted is None:
        assert found == []
        return
    assert [each.token for each in found] == tokens
    for each, row in zip(found, log_probs, strict=True):
        assert each.logprob == pytest.approx(float(row[each.token]), abs=1e-5)
        assert each.rank == 1 + int((row > row[each.token]).sum())
        best = row.topk(wanted)
        assert [token for token, _ in each.top] == best.indices.tolist()
        assert [value for _, value in each.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("cell", pairwise(), ids=str)
def test_every_pair_of_features(cell: Cell) -> None:
    check(cell)


COMBINATIONS = [
    Cell(0, method, grammar, sampling, situation, kept)
    for method, situation, kept, grammar, sampling in itertools.product(
        METHODS, SITUATIONS, KEPT, GRAMMARS, SAMPLING
    )
]
"""All but for the depth. Neighbours differ in what the same engine serves."""

SPARING = ("forks swapped", "mixes")

CHECKED = 4
"""One in so many of these runs in checking mode: those where any two features meet."""


def test_any_two_features_meet_in_a_cell_that_is_checked() -> None:
    checked = [each for each in COMBINATIONS if in_turn(each, CHECKED)]
    assert len(checked) == pytest.approx(len(COMBINATIONS) / CHECKED, rel=0.05)
    axes = ("method", "grammar", "sampling", "situation", "kept")

    def pairs(cells: Sequence[Cell]) -> set[tuple[str, ...]]:
        return {
            (one, str(getattr(each, one)), other, str(getattr(each, other)))
            for each in cells
            for one, other in itertools.combinations(axes, 2)
        }

    assert pairs(checked) == pairs(COMBINATIONS)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", COMBINATIONS, ids=str)
def test_every_combination(cell: Cell) -> None:
    checked = in_turn(cell, CHECKED)
    # Where threads run one step at a time they do what the serial run, of depth 1 too, does.
    check_depths(cell, DEPTHS if checked else DEPTHS[1:], checked)


@pytest.mark.parametrize("sampling", sorted(CHANGES_TOKENS))
def test_each_option_changes_the_reference(sampling: str) -> None:
    cell = Cell(1, None, "no grammar", sampling, "chunked prefill")
    for each in asked(cell):
        plain = SamplingParams(max_tokens=each.params.max_tokens)
        if sampling == "repetition":
            plain = replace(each.params, **OFF)
        if each.params == plain:
            continue
        if each.params.min_tokens:
            plain = SamplingParams(
                max_tokens=plain.max_tokens, stop_token_ids=each.params.stop_token_ids
            )
        assert plainly(each).tokens != plainly(CellRequest(each.prompt, plain)).tokens


@pytest.mark.parametrize("option", OFF)
def test_each_way_against_repetition_changes_the_reference_by_itself(option: str) -> None:
    asking = asked(Cell(1, None, "no grammar", "repetition", "chunked prefill"))
    (each,) = (
        one for one in asking if [name for name in OFF if getattr(one.params, name)] == [option]
    )
    without = replace(each.params, **{option: OFF[option]})
    assert plainly(each).tokens != plainly(replace(each, params=without)).tokens
