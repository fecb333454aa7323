"""A model in stages, each on a thread of its own: tokens and counts are those of one rank."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from stepweave.serving.engine import Engine
from stepweave.testing.engines import fitted, tiny_engine, tiny_request
from tests.serving.in_stages import Wired, in_groups, run_together, staged_engines
from tests.serving.matrix import (
    CONTEXT,
    GRAMMARS,
    METHODS,
    SAMPLING,
    SITUATIONS,
    Cell,
    asked,
    config_of,
    drafter_context,
    run,
)

CELLS = [
    Cell(*cell) for cell in itertools.product((1, 2, 3, 4), METHODS, GRAMMARS, SAMPLING, SITUATIONS)
]


def check(cell: Cell, stages: int, executor: str = "threads") -> None:
    requests = asked(cell)
    alone = run(cell, requests, depth=1, executor="serial", checked=False)
    config = replace(config_of(cell, requests, executor), **in_groups(cell.depth))

    def build(links: Wired) -> Engine:
        return tiny_engine(config, drafter_context=drafter_context(cell), links=links)

    engines = staged_engines(build, stages)

    def serve(index: int) -> list[Any]:
        made = [
            tiny_request(
                uid,
                each.prompt,
                each.params,
                context=CONTEXT,
                bad_words=each.bad_words,
                dry_breakers=each.dry_breakers,
            )
            for uid, each in enumerate(requests)
        ]
        table = engines[index].new_table()
        table.submit_all([fitted(engines[index], each) for each in made])
        engines[index].run(table)
        return made

    results = run_together([partial(serve, index) for index in range(stages)])
    for found in results:
        for mine, theirs in zip(found, alone.requests, strict=True):
            assert mine.error is None, mine.error
            assert mine.output_ids == theirs.output_ids
            assert (mine.drafted, mine.accepted) == (theirs.drafted, theirs.accepted)
            assert mine.logprobs == theirs.logprobs
            assert mine.prompt_logprobs == theirs.prompt_logprobs


SAMPLE = [
    (3, Cell(1, "mtp modules", "structural tag", "plain", "swap")),
    (2, Cell(3, "eagle3", "mixed", "mixes", "preemption")),
    pytest.param(  # of those by day one is enough that takes half as long
        *(3, Cell(4, "draft_model", "schema", "logprobs", "chunked prefill")),
        marks=pytest.mark.nightly,
    ),
    (2, Cell(2, "ngram", "mixed", "prompt logprobs", "prefix cache")),
    (2, Cell(3, "mtp", "no grammar", "plain", "swap")),
    (2, Cell(3, "eagle3 tree", "mixed", "mixes", "swap")),
    (3, Cell(4, "mtp grown", "schema", "seeded", "prefix cache")),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("stages", "cell"), SAMPLE, ids=str)
def test_stages_have_the_tokens_and_counts_of_one_rank(stages: int, cell: Cell) -> None:
    check(cell, stages)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", random.Random(5).sample(CELLS, 400), ids=str)
def test_many_cells_in_stages(cell: Cell) -> None:
    check(cell, random.Random(f"{cell}").choice((2, 3)))
