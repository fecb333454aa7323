"""commit: settle what a step produced, in two phases.

`advance` reads the copied-back tokens, cuts them where a request ends, and moves the grammar
matchers: all that the next mask needs. `finish` does text, stop strings, streaming and the release
of rows and blocks, off the path to the next mask. A request's failure ends that request only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.node import OpContext
from ..graph.parameters import context, optional, optional_update, read, update, wanted
from .kind import NodeKind
from .values import BATCH, ENDED, FAILURES, HOST_SAMPLED, MATCHERS, REQUESTS, SETTLED

if TYPE_CHECKING:
    from ..requests.batch import StepBatch
    from ..requests.table import RequestTable
    from .data import EndedRequests, HostSampled, RequestFailures, SettledRows
    from .ops.masks import MatcherTable


@op(writes=SETTLED, phase="advance", decides="what requests get")
def advance(
    batch: StepBatch = read(BATCH),
    host_sampled: HostSampled | None = read(HOST_SAMPLED),
    requests: RequestTable = update(REQUESTS),
    matchers: MatcherTable | None = optional_update(MATCHERS),
    failed: RequestFailures | None = optional(FAILURES, 1),
    ctx: OpContext = context(),
) -> SettledRows:
    """Settle the tokens of every live row, and advance its matcher by what was kept."""
    from .ops.settling import end_failed, settle_tokens

    requests.paced(batch, ctx.waited_s)
    end_failed(requests, failed or ())
    for row in batch.rows:
        requests.settle(row)
    for uid in requests.take_ended():
        if matchers is not None:
            matchers.drop(uid)
    return settle_tokens(requests, batch, host_sampled, matchers)


@op(writes=wanted(ENDED), phase="finish", decides="which requests end")
def finish(
    settled: SettledRows = read(SETTLED),
    requests: RequestTable = update(REQUESTS),
    ctx: OpContext = context(),
) -> EndedRequests:
    """Text, streaming, counts, and the end of what ended."""
    from .ops.settling import finish_requests

    return finish_requests(requests, settled, ctx.step)


KIND = NodeKind(
    "commit",
    "settle tokens, advance grammars, stream text, end requests",
    host=(advance, finish),
    stages="all",
)
