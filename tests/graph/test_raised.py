"""Where code of others raised, told by the name of its file alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stepweave.graph.raised import raised_at
from stepweave.policies.registry import policy_class


def raised(what: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        what()
    return caught.value


def wrong() -> int:
    return [][0]


def test_a_function_of_somebody_else_is_named_with_its_line() -> None:
    assert re.fullmatch(r" \(test_raised\.py:\d+, in \w+\)", raised_at(raised(wrong)))


def test_what_a_library_raises_in_our_code_is_told_without_a_place() -> None:
    own = raised(lambda: policy_class("drafting", 5))
    traceback = own.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals["__name__"] == __name__:
        traceback = traceback.tb_next
    assert traceback is not None, "our code is on the way"
    assert raised_at(own.with_traceback(traceback)) == ""


@pytest.mark.parametrize("call", [lambda: torch.ones(2) @ torch.ones(3), lambda: json.loads("{")])
def test_it_is_the_line_that_called_the_library(call: Callable[[], Any]) -> None:
    assert "test_raised.py" in raised_at(raised(call))
