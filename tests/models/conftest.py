"""Shared by the tests of `stepweave.models`."""

from collections.abc import Iterator

import pytest
import torch

from tests.models.interpreter import Interpreter, interpreter, why_no_interpreter


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One torch thread: the models are tiny, and on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def interpreted() -> Iterator[Interpreter]:
    """Triton's interpreter; there, models attend with the Triton kernels."""
    if reason := why_no_interpreter():
        pytest.skip(reason)
    with interpreter(STEPWEAVE_KERNELS="triton") as started:
        yield started
