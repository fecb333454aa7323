"""Other threads run while a library compiles: it gives the interpreter's lock back meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.job import Job

from .conftest import BACKENDS, make_backend

TRIES = 50
OPTIONAL = GrammarSpec.from_request(
    {"json": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(100)}}}
)
"""What takes each library some milliseconds at least."""


class Neighbour:
    """A thread that counts its turns, and gives up the lock after each of its own accord."""

    def __init__(self) -> None:
        self.turns = 0
        self._go_on = True
        self._thread = threading.Thread(target=self._count)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._go_on = False
        self._thread.join()

    def _count(self) -> None:
        while self._go_on:
            self.turns += 1
            time.sleep(0)


@pytest.fixture
def nobody_is_interrupted() -> Iterator[None]:
    """A thread loses the lock only where it gives it up: the interpreter never takes it away."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    yield
    sys.setswitchinterval(interval)


def turns_during(neighbour: Neighbour, call: object) -> bool:
    """Whether the neighbour had a turn while a call was under way; it is made up to 50 times, as
    the machine may have other things to do than to run the neighbour."""
    assert callable(call)
    for _ in range(TRIES):
        before = neighbour.turns
        call()
        if neighbour.turns > before:
            return True
    return False


@pytest.mark.usefixtures("nobody_is_interrupted")
@pytest.mark.parametrize("name", BACKENDS)
def test_compiling_leaves_the_lock_to_others(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    backend = make_backend(name, tokenizer)
    job = backend._job(OPTIONAL, True)  # type: ignore[attr-defined]
    assert isinstance(job, Job)
    run = backend._run  # type: ignore[attr-defined]
    with Neighbour() as neighbour:
        assert turns_during(neighbour, lambda: run(OPTIONAL, job))


@pytest.mark.usefixtures("nobody_is_interrupted")
def test_a_call_that_keeps_the_lock_would_be_noticed() -> None:
    with Neighbour() as neighbour:
        assert not turns_during(neighbour, lambda: sum(range(10_000)))
