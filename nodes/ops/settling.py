"""What a step settled: the tokens of each request, its text, its end."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from ...policies.windows import Window
from ...requests.batch import ScheduledRow, StepBatch
from ...requests.request import Request
from ...requests.table import RequestTable
from ..data import (
    EndedRequest,
    EndedRequests,
    HostSampled,
    RequestFailures,
    SettledRow,
    SettledRows,
)
from .host_copies import logprob_of
from .masks import MatcherTable
from .transfer import packed

NO_NUMBERS = (
    "its log-probabilities are NaN: the model, or a node between `forward` and `sample`, wrote "
    "logits that are NaN or infinite"
)


def end_failed(table: RequestTable, failed: RequestFailures) -> None:
    """End whom an op could not work for, before any row is settled.

    What such a row has left in the KV cache is then in nobody's place, to be shared or found.
    """
    for each in failed:
        if (request := table.requests.get(each.uid)) is not None:
            table.finish(request, "error", each.error)


def cut(request: Request, tokens: Sequence[int]) -> Sequence[int]:
    """The tokens up to the first that ends the request: a stop token, or the last it may have.

    Stop strings are found in the text, by `finish`; they can only cut more.
    """
    room = request.max_tokens - len(request.output_ids)
    for index, token in enumerate(tokens[:room]):
        if token in request.stop_token_ids:
            return tokens[: index + 1]
    return tokens[:room]


def settle_tokens(
    table: RequestTable,
    batch: StepBatch,
    sampled: HostSampled | None,
    matchers: MatcherTable | None,
) -> SettledRows:
    """Settle the tokens of every live row, and advance its matcher by what was kept."""
    settled = _settled(table, batch, sampled, matchers)
    if table.witness is not None and settled:
        said = tuple((s.uid, s.tokens, s.drafted, s.accepted, s.error) for s in settled)
        table.witness.noted(batch.step, "advance of commit", said)
    return settled


def _settled(
    table: RequestTable,
    batch: StepBatch,
    sampled: HostSampled | None,
    matchers: MatcherTable | None,
) -> SettledRows:
    if sampled is None:
        return ()
    settled: list[SettledRow] = []
    _prompt_logprobs(table, batch, sampled)
    count = len(batch.sampling)
    tokens = packed(sampled.tokens, count, batch.width).tolist()
    counts = sampled.counts[:count].tolist()
    drafted = sampled.drafted[:count].tolist()
    paths = None if sampled.paths is None else packed(sampled.paths, count, batch.width).tolist()
    for sample_index, row in enumerate(batch.sampling):
        request = table.requests.get(row.request.uid)
        if not row.yields or request is None or request.settled >= row.limit:
            if row.decodes:
                table.note_waste(row.window - 1)
            continue  # it ended while this step was in flight: its work is not counted
        error = None if matchers is None else matchers.failures.get(request.uid)
        kept = () if error else tuple(cut(request, tokens[sample_index][: counts[sample_index]]))
        if error is None and matchers is not None:
            matcher = matchers.of(row)
            try:
                if matcher is not None:
                    matcher.advance(kept)
            except Exception as failure:  # the boundary: this request's grammar, its own error
                error, kept = f"{type(failure).__name__}: {failure}", ()
        if (top := request.params.logprobs) is not None:
            first = sample_index * batch.width
            told = [
                logprob_of(sampled.logprobs, first + window_position, token, top, batch.logprobs)
                for window_position, token in enumerate(kept)
            ]
            if any(isnan(each.logprob) for each in told):
                error, kept, told = error or NO_NUMBERS, (), []
            request.logprobs += told
        request.output_ids.extend(kept)
        if row.decodes:
            path = None if paths is None else paths[sample_index]
            # A draft behind the end of the text was worth nothing.
            worth = min(counts[sample_index], max(1, len(kept))) - 1
            window = window_of(row, drafted[sample_index], worth, path)
            table.note_window(request, window, row.window - 1)
        settled.append(
            SettledRow(request.uid, kept, drafted[sample_index], counts[sample_index] - 1, error)
        )
    return tuple(settled)


def window_of(
    row: ScheduledRow, drafted: int, kept: int, path: Sequence[int] | None = None
) -> Window:
    """The window of a row that decodes, with `drafted` drafts of which `kept` are in its text.

    `path`: in a tree, the place of the row's last token and those of the drafts that are kept, then
    any. A tree may have nodes that no token stands for, or that break a grammar, between others: so
    all places of a window that has drafts count as judged.
    """
    if path is None:
        return Window(drafted, kept)
    return Window(row.window - 1 if drafted else 0, kept, tuple(path[1 : 1 + kept]))


def _prompt_logprobs(table: RequestTable, batch: StepBatch, sampled: HostSampled) -> None:
    """Add what this step's chunks say of the prompts; a chunk computed again says it once.

    Where that are no numbers, the request ends.
    """
    predicted = 0
    for row in batch.rows:
        request, top = table.requests.get(row.request.uid), row.request.params.prompt_logprobs or 0
        for position, token in enumerate(row.prompt_targets, start=row.start):
            if request is not None and position == len(request.prompt_logprobs):
                told = logprob_of(sampled.prompt, predicted, token, top, batch.prompt_logprobs)
                if isnan(told.logprob):
                    table.finish(request, "error", NO_NUMBERS)
                    request = None
                else:
                    request.prompt_logprobs.append(told)
            predicted += 1


def finish(table: RequestTable, settled: SettledRows) -> EndedRequests:
    """Text, streaming, counts, and the end of what ended: the outputs of those that came to it."""
    for each in settled:
        request = table.find(each.uid)
        try:
            text, tokens = _take_in(table, request, each)
        except Exception as failure:  # a decoder's fault ends its own request only
            # Tokens of which nobody was told are none of its output.
            request.forget_after(len(request.output_ids) - len(each.tokens))
            table.finish(request, "error", f"{type(failure).__name__}: {failure}")
        else:
            request.tell(text, tokens)
    newest = table.newest  # before anybody is told, who may then ask for more
    # Here, since a request cancelled meanwhile has all its text only now.
    return tuple(
        EndedRequest(tuple(request.output_ids), newest)
        for request in table.tell_ended()
        if request.finish_reason in ("stop", "length")
    )


def _take_in(table: RequestTable, request: Request, each: SettledRow) -> tuple[str, int]:
    """Account for one request's tokens; the text that may be shown now, and how many are kept."""
    if each.error is not None:
        table.finish(request, "error", each.error)
        return "", 0
    text, kept, reason = request.take_text(each.tokens)
    if kept < len(each.tokens):
        request.forget_after(len(request.output_ids) - len(each.tokens) + kept)
    accepted = min(each.accepted, kept)
    request.drafted += each.drafted
    request.accepted += accepted
    table.totals.settle(kept, each.drafted, accepted)
    if reason is not None:
        table.finish(request, reason)
    return text, kept


def finish_requests(table: RequestTable, settled: SettledRows, step: int) -> EndedRequests:
    """`finish`, and what it came to for whoever compares it or looks on."""
    found = [table.find(each.uid) for each in settled] if table.witness is not None else []
    ended = _finish_and_count(table, settled, step)
    if table.witness is not None and found:
        said = tuple((r.uid, r.finish_reason, r.error, len(r.output_ids)) for r in found)
        table.witness.noted(step, "finish of commit", said)
    return ended


def _finish_and_count(table: RequestTable, settled: SettledRows, step: int) -> EndedRequests:
    if table.counts is None:
        return finish(table, settled)
    totals = table.totals
    tokens, drafted, accepted = totals.tokens, totals.drafted, totals.accepted
    ended = finish(table, settled)
    table.counts.settled(
        step,
        tokens=totals.tokens - tokens,
        drafted=totals.drafted - drafted,
        accepted=totals.accepted - accepted,
    )
    return ended
