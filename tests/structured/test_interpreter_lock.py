"""Other threads run while a library compiles: it gives the interpreter's lock back meanwhile."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.job import Job
from tests.interpreter_lock import Neighbour, nobody_is_interrupted, turns_during

from .conftest import BACKENDS, make_backend

OPTIONAL = GrammarSpec.from_request(
    {"json": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(100)}}}
)
"""What takes each library some milliseconds at least."""


@pytest.mark.parametrize("name", BACKENDS)
def test_compiling_leaves_the_lock_to_others(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    backend = make_backend(name, tokenizer)
    job = backend._job(OPTIONAL, True)  # type: ignore[attr-defined]
    assert isinstance(job, Job)
    run = backend._run  # type: ignore[attr-defined]
    with nobody_is_interrupted(), Neighbour() as neighbour:
        assert turns_during(neighbour, lambda: run(OPTIONAL, job))


def test_a_call_that_keeps_the_lock_would_be_noticed() -> None:
    with nobody_is_interrupted(), Neighbour() as neighbour:
        assert not turns_during(neighbour, lambda: sum(range(10_000)))
