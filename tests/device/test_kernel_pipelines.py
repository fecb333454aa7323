"""Whole pipelines with the kernels, in Triton's interpreter, against the same without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.device.kernel_pipelines import OTHERS, Case, found
from tests.device.pipelines import DRAFTERS, Told
from tests.models.interpreter import Interpreter

SAMPLE = Case("eagle3", structured=True, depth=2, most=3, rows=2)
FORCED = ("ngram", "suffix", "draft model", "eagle3, tree", "eagle3, rejection")


def test_kernels_change_neither_tokens_nor_counts(interpreted: Interpreter) -> None:
    compare(interpreted, SAMPLE)


@pytest.mark.nightly
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_pipeline_is_changed_by_kernels(
    interpreted: Interpreter, drafter: str, structured: bool, depth: int
) -> None:
    compare(interpreted, Case(drafter, structured, depth))


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
def test_nor_one_of_other_drafters_and_caches(interpreted: Interpreter, name: str) -> None:
    compare(interpreted, Case(name, structured=True, depth=2))


@pytest.mark.nightly
@pytest.mark.parametrize("drafter", FORCED)
def test_nor_one_that_drafts_what_grammars_force(interpreted: Interpreter, drafter: str) -> None:
    case = Case(drafter, structured=True, depth=2, most=12, forced=True, jumps=True)
    told = compare(interpreted, case)
    assert told != found(replace(case, jumps=False)).told, "nothing was forced"


def compare(interpreted: Interpreter, case: Case) -> Told:
    """Equal tokens and counts; keys and values equal but for rounding, each in its slot.

    A key in a wrong slot shows there first: what it costs is a draft now and then.
    """
    expected, kernels = found(case), interpreted("tests.device.kernel_pipelines:found", case)
    assert kernels.told == expected.told
    assert [each[3] for each in expected.told] == [None] * case.rows
    assert len(kernels.caches) == len(expected.caches) > 0
    for one, other in zip(kernels.caches, expected.caches, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    return expected.told
