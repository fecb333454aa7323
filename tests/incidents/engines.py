"""Small runs of the real engine and of its parts, for incidents that are about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
import torch

from stepweave.executors.errors import NodeFailure
from stepweave.nodes.data import HostDrafts, HostSampled
from stepweave.nodes.ops.host_copies import new_drafts, new_sampled
from stepweave.nodes.ops.masks import MaskBuffer, MatcherTable
from stepweave.nodes.sizes import Sizes
from stepweave.requests import counts
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.table import Limits, RequestTable
from stepweave.structured.grammar import GrammarSpec
from stepweave.testing.engines import (
    VOCAB,
    TinyConfig,
    tiny_engine,
    tiny_grammars,
    tiny_request,
    tiny_requests,
)
from stepweave.testing.engines import serve as serve_on
from tests.incidents.incident import Told

CHOICE = GrammarSpec.from_request({"choice": ["yes", "no"]})
TINY_LIMITS = Limits(
    max_rows=4,
    token_budget=64,
    block_size=4,
    num_blocks=64,
    context_length=64,
    draft_tokens=2,
    max_queue=8,
)
LETTERS = GrammarSpec.from_request({"regex": "(a|b)+"})


def serve(requests: Sequence[Request], **config: Any) -> list[list[int]]:
    """What the requests get from an engine of this configuration."""
    return serve_on(tiny_engine(TinyConfig(**config)), requests)


def strictly_served(requests: Sequence[Request], **config: Any) -> list[list[int]]:
    """The same in checking mode; the cause of a node's failure is raised itself."""
    try:
        return serve(requests, check="strict", **config)
    except NodeFailure as failure:
        raise failure.__cause__ or failure from None


def seeded(
    where: object,
    name: str,
    fault: Callable[..., Any],
    asked: Mapping[str, Any] = MappingProxyType({}),
    **config: Any,
) -> None:
    """A run in checking mode in which `fault` takes the place of a function of the engine.

    It is given that function, and what that is called with. All requests ask what is `asked`.
    """
    real = getattr(where, name)

    def instead(*given: Any, **named: Any) -> Any:
        return fault(real, *given, **named)

    with patch.object(where, name, instead):
        strictly_served(drawing(**asked), **config)


def drawing(**asked: Any) -> list[Request]:
    """Four short requests that draw at random, and ask this."""
    params = (
        SamplingParams(**{"max_tokens": 10, "temperature": 0.9, "seed": seed, **asked})
        for seed in range(4)
    )
    return tiny_requests(list(params), longest=12)


def structured(uid: int, spec: GrammarSpec, max_tokens: int = 8, window: int = 3) -> Request:
    params = SamplingParams(max_tokens=max_tokens, structured_outputs=spec)
    request = tiny_request(uid, [5, 6, 7], params)
    request.window = window
    return request


def greedy(count: int, max_tokens: int = 10, **params: Any) -> list[Request]:
    each = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params)
    return tiny_requests([each] * count)


def token(text: str) -> int:
    """The token with which an output may begin that continues like `text`."""
    spec = GrammarSpec.from_request({"choice": [text]})
    row = torch.zeros(1, (VOCAB + 31) // 32, dtype=torch.int32).numpy()
    tiny_grammars().compile(spec).matcher().fill_window((), row)
    return next(iter(allowed(row[0])))


def allowed(row: Any) -> set[int]:
    return {at for at in range(VOCAB) if int(row[at // 32]) >> (at % 32) & 1}


def decoding(request: Request, row: int = 0, generation: int = 1) -> ScheduledRow:
    """The request's next window, as the scheduler would put it into a batch."""
    request.arrive()
    return ScheduledRow(request.spec, row, generation, blocks=())


def table_with(*requests: Request) -> RequestTable:
    """A table to which these have come."""
    table = RequestTable(TINY_LIMITS)
    table.submit_all(requests)
    table.schedule(max(0, *(each.last_step + 1 for each in requests)))  # another table had it
    return table


def matchers_for(*requests: Request) -> MatcherTable:
    """Where matchers of these can be made."""
    return MatcherTable(table_with(*requests).grammars)


def pending(tokens: Sequence[int], row: int = 0, generation: int = 1) -> HostDrafts:
    """Drafts that were copied to the host, of one row."""
    held = new_drafts(Sizes(max_rows=4, draft_tokens=len(tokens)))
    held.tokens[row] = torch.tensor(list(tokens))
    held.tags[row] = torch.tensor([generation, 3])
    return held


def masks(
    rows: Iterable[ScheduledRow], drafts: HostDrafts | None, table: MatcherTable
) -> list[list[set[int]]]:
    """What the masks of a step allow, by row and place."""
    batch = StepBatch(4, tuple(rows))
    filled = MaskBuffer(4, 3, VOCAB).fill(batch, table, drafts)
    every = [allowed(line) for line in filled.bits.numpy()]
    width = len(every) // filled.rows  # every row has a grammar
    return [every[at : at + width] for at in range(0, len(every), width)]


def came_back(tokens: Sequence[int], count: int, drafted: int) -> HostSampled:
    """A step of one row, copied back."""
    host = new_sampled(Sizes(max_rows=1, draft_tokens=len(tokens) - 1, token_budget=8))
    host.tokens[0] = torch.tensor(list(tokens))
    host.counts[0], host.drafted[0] = count, drafted
    return host


@cache
def type_errors() -> dict[str, str]:
    """What mypy says of each misuse of counts, by the line it is in."""
    misuses = {
        "free": "free(InFlight(windows=1, drafts=2).upper_bound(SettledCount(4)))",
        "resume": "resume(InFlight(windows=1, drafts=2).upper_bound(SettledCount(4)))",
        "rate": "rate(InFlight(windows=2).steps, SettledCount(4))",
        "right": "free(InFlight(windows=1).lower_bound(SettledCount(4)))",
    }
    api: Any = pytest.importorskip("mypy.api", reason="it is about what mypy says")
    source = Path(counts.__file__).read_text(encoding="utf-8")
    program = [
        *source.splitlines(),
        "def free(up_to: SettledCount) -> None: ...",
        "def resume(at: SettledCount) -> None: ...",
        "def rate(accepted: SettledCount, drafted: SettledCount) -> None: ...",
        *misuses.values(),
    ]
    said, _, _ = api.run(["--no-error-summary", "--config-file=", "-c", "\n".join(program)])
    first = len(program) - len(misuses) + 1
    found = dict.fromkeys(misuses, "")
    for line in said.splitlines():
        number = int(line.split(":")[1])
        assert number >= first, said
        found[list(misuses)[number - first]] = line
    return found


def told_by_mypy(misuse: str) -> Told:
    said = type_errors()
    assert said["right"] == "", "what is right is not refused"
    return Told("mypy", said[misuse])
