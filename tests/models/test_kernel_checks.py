"""The checks that kernels pass on a GPU, rehearsed in Triton's interpreter on fewer numbers."""

from __future__ import annotations

import pytest
import torch

from tests.models.interpreter import Interpreter
from tests.models.kernel_checks import ERRORS
from tests.models.layouts import LAYOUTS
from tests.models.test_kernels_glue import ARGUMENTS

CHECKS = "tests.models.kernel_checks"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_stands_between_products(
    interpreted: Interpreter, name: str, dtype: torch.dtype
) -> None:
    for layout in LAYOUTS if dtype == torch.bfloat16 else ("offset",):
        assert interpreted(f"{CHECKS}:between", name, layout, "narrow", dtype, "cpu")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_stands_between_products_of_usual_widths(interpreted: Interpreter, name: str) -> None:
    for layout in ("offset", "transposed"):
        assert interpreted(f"{CHECKS}:between", name, layout, "wide", torch.bfloat16, "cpu")


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("kept", [None, torch.int8], ids=["as computed", "8 bits"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("lengths", [(37, 3), (11, 0, 10, 26, 15)], ids=["splits", "one split"])
@pytest.mark.sampled(4)
def test_tokens_of_draft_trees_see_their_paths(
    interpreted: Interpreter,
    lengths: tuple[int, ...],
    window: int | None,
    kept: torch.dtype | None,
    dtype: torch.dtype,
) -> None:
    assert interpreted(f"{CHECKS}:trees", "few", lengths, 24, window, kept, dtype, "cpu")


def test_tokens_of_the_largest_trees_see_their_paths(interpreted: Interpreter) -> None:
    given = ("most", (66, 70), 16, None, None, torch.float32, "cpu")
    assert interpreted(f"{CHECKS}:trees", *given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("kept", [None, torch.int8], ids=["as computed", "8 bits"])
@pytest.mark.parametrize("planted", [False, True], ids=["windows", "trees"])
def test_values_that_are_part_of_their_keys_are_read_with_them(
    interpreted: Interpreter, planted: bool, kept: torch.dtype | None, dtype: torch.dtype
) -> None:
    given = ((21, 16), 2, (40, 24), kept, dtype, "cpu")
    assert interpreted(f"{CHECKS}:latents", *given, planted=planted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("kept", [None, torch.int8], ids=["as computed", "8 bits"])
def test_latents_are_stored_at_their_slots(
    interpreted: Interpreter, kept: torch.dtype | None, dtype: torch.dtype
) -> None:
    assert interpreted(f"{CHECKS}:stored_latents", (40, 24), kept, dtype, "cpu")
