"""Small steps for tests of nodes: rows, batches, tables, and models that compute by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from stepweave.nodes.data import DraftTable, Inputs, Progress, Sampled
from stepweave.nodes.ops.block_tables import BlockTables
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.nodes.sizes import Sizes
from stepweave.requests.batch import RequestSpec, ScheduledRow, StepBatch
from stepweave.requests.params import SamplingParams
from stepweave.requests.table import Limits

T = TypeVar("T")

VOCAB = 50
SIZES = Sizes(max_rows=4, token_budget=64, draft_tokens=2)
LIMITS = Limits(
    max_rows=4,
    token_budget=64,
    block_size=4,
    num_blocks=40,
    context_length=32,
    draft_tokens=2,
    max_queue=8,
)
CACHE: Any = SimpleNamespace(block_size=LIMITS.block_size)
"""All that drafters ask of a cache; the models below keep no keys."""


def some(result: T | None) -> T:
    """What a node returned, which is something."""
    assert result is not None
    return result


def blocks_of(row: int) -> tuple[int, ...]:
    """Eight blocks of its own for each row: room for its context."""
    return tuple(range(1 + 8 * row, 9 + 8 * row))


def spec(row: int, window: int = 3, *, structured: bool = False, **params: Any) -> RequestSpec:
    """Request number `row`, with a prompt of five tokens."""
    return RequestSpec(
        uid=row,
        id=f"r{row}",
        params=SamplingParams(**params),
        prompt_tokens=5,
        window=window,
        structured=structured,
    )


def decoding(
    row: int, window: int = 3, generation: int = 1, *, most: int = 34, **params: Any
) -> ScheduledRow:
    """A row that decodes: the device knows its tokens, at `most` so many with this step's."""
    request = spec(row, window, **params)
    return ScheduledRow(request, row, generation, blocks_of(row), limit=32, most=most)


def chunk(
    row: int,
    tokens: Sequence[int],
    start: int = 0,
    *,
    window: int = 3,
    samples: bool = True,
    forced: int = -1,
    following: int = -1,
    **more: Any,
) -> ScheduledRow:
    """A row that computes these tokens of its prompt. `params` are those of its request."""
    request = spec(row, window, **more.pop("params", {}))
    return ScheduledRow(
        request,
        row,
        1,
        blocks_of(row),
        start=start,
        tokens=tuple(tokens),
        samples=samples,
        forced=forced,
        following=following,
        limit=32,
        most=32,
        **more,
    )


def progress_of(rows: Mapping[int, tuple[int, int]]) -> Progress:
    """By row: its last token, and how many of its tokens are computed."""
    progress = Progress.empty(SIZES.request_slots)
    for row, (last, computed) in rows.items():
        progress.last_token[row], progress.computed[row] = last, computed
    return progress


def drafts_of(rows: Mapping[int, Sequence[int]], k: int = 2) -> DraftTable:
    """By row: its pending drafts, of its first generation."""
    table = DraftTable.empty(SIZES.request_slots, k)
    for row, tokens in rows.items():
        table.tokens[row, : len(tokens)] = torch.tensor(tokens)
        table.tags[row] = torch.tensor([1, 3])
    return table


def history() -> History:
    return History(SIZES.request_slots, LIMITS.context_length)


def block_tables() -> BlockTables:
    return BlockTables(SIZES.request_slots, LIMITS.blocks_for(LIMITS.context_length))


def inputs_of(
    batch: StepBatch,
    progress: Progress,
    drafts: DraftTable | None = None,
    past: History | None = None,
    tables: BlockTables | None = None,
) -> Inputs:
    """The inputs of a step, as its first nodes make them."""
    found = prepare_inputs(
        staging=stage(batch=batch, staging=Staging(LIMITS)),
        progress=progress,
        history=past or history(),
        tables=tables or block_tables(),
        drafts=drafts,
        limits=LIMITS,
        vocab_size=VOCAB,
    )
    assert found is not None
    return found


def sampled_of(
    rows: Sequence[Sequence[int]], drafted: Sequence[int] | None = None, width: int = 0
) -> Sampled:
    """What a step sampled: the tokens of each sampling row, in windows of `width` at least."""
    width = max(width, *map(len, rows))
    return Sampled(
        tokens=torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows]),
        counts=torch.tensor([len(row) for row in rows]),
        drafted=torch.tensor(drafted or [len(row) - 1 for row in rows]),
    )


def after(token: int, position: int) -> int:
    """The token that the models of these tests put after another at a position."""
    return (7 * token + 3 * position + 1) % VOCAB


class ByHand:
    """A model whose next token is `after`. It keeps what it was called with, pass by pass.

    As a head its input at a position is the token after it, and its hidden states count passes.
    """

    further = ()

    def __init__(self, context_length: int = 32, vocab: int = VOCAB) -> None:
        self.context_length, self.vocab = context_length, vocab
        self.passes: list[dict[str, Any]] = []

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(self, ids: Tensor, *given: Any, pieces: None = None) -> tuple[Tensor, Tensor]:
        hidden = given[:-2] if isinstance(given[-1], Tensor) else given[:-1]
        batch = given[len(hidden)]
        lines = given[-1] if isinstance(given[-1], Tensor) else torch.arange(len(ids))
        self.passes.append(
            {
                "ids": ids.tolist(),
                "positions": batch.positions.tolist(),
                "slots": batch.slots.tolist(),
                "query_lens": batch.query_lens,
                "lines": lines.tolist(),
                "hidden": hidden[0].tolist() if hidden else None,
            }
        )
        logits = torch.zeros(len(lines), self.vocab)
        for index, line in enumerate(lines.tolist()):
            logits[index, after(int(ids[line]), int(batch.positions[line]))] = 1.0
        return logits, torch.full((len(lines), 1), float(len(self.passes)))


class Context:
    """What an op gets of its executor: the step, how long it waited, and a way to stop."""

    pieces = None

    def __init__(self, step: int = 0, waited_s: float = 0.0) -> None:
        self.step, self.waited_s, self.stopped = step, waited_s, False
        self.firing = 0

    def stop(self) -> None:
        self.stopped = True

    def read(self, name: str) -> Any:
        raise AssertionError(f"a node function gets {name!r} as an argument")

    buffer = state = read

    def write(self, name: str, datum: Any) -> None:
        raise AssertionError(f"a node function returns {name!r}")
