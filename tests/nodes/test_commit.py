"""commit: what each request gets of a step that has come back, and who ends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from stepweave.nodes.commit import advance, finish
from stepweave.nodes.data import (
    HostSampled,
    RequestFailure,
    RequestFailures,
    SettledRow,
    SettledRows,
)
from stepweave.nodes.ops.host_copies import new_sampled
from stepweave.nodes.ops.masks import MatcherTable
from stepweave.requests.batch import StepBatch
from stepweave.requests.increment import Increment
from stepweave.requests.params import SamplingParams
from stepweave.requests.request import Request, TokenLogprob
from stepweave.requests.table import RequestTable
from stepweave.testing.engines import tiny_request
from tests.incidents.engines import LETTERS, structured, token
from tests.nodes.steps import LIMITS, SIZES, Context, some


def asked(uid: int = 0, window: int = 3, **params: Any) -> Request:
    chosen = SamplingParams(**{"max_tokens": 8, **params})
    request = tiny_request(uid, [5, 6, 7], chosen, context=32)
    request.window = window
    return request


def came_back(
    rows: list[list[int]], counts: list[int], drafted: list[int], width: int
) -> HostSampled:
    """Tokens of each sampling row, `width` to a row, on the host."""
    host = new_sampled(replace(SIZES, token_budget=16))
    for at, tokens in enumerate(rows):
        for place, each in enumerate(tokens):
            host.tokens.view(-1)[at * width + place] = each
        host.counts[at], host.drafted[at] = counts[at], drafted[at]
    return host


class Served:
    """A table, and steps of it that are settled one by one."""

    def __init__(self, *requests: Request, matchers: MatcherTable | None = None) -> None:
        self.table = RequestTable(LIMITS)
        self.matchers = matchers
        self.failed: RequestFailures = ()
        self.table.submit_all(requests)
        self.step = -1

    def schedule(self) -> StepBatch:
        self.step += 1
        return self.table.schedule(self.step)

    def advance(self, batch: StepBatch, back: HostSampled | None) -> SettledRows:
        return some(
            advance(
                batch=batch,
                host_sampled=back,
                requests=self.table,
                matchers=self.matchers,
                failed=self.failed,
                ctx=Context(batch.step),
            )
        )

    def finish(self, settled: SettledRows) -> None:
        finish(settled=settled, requests=self.table, ctx=Context(self.step))

    def prompt(self, *tokens: int) -> None:
        """The first token of each request, settled."""
        batch = self.schedule()
        back = came_back([[each] for each in tokens], [1] * 4, [0] * 4, batch.width)
        self.finish(self.advance(batch, back))


def test_the_kept_tokens_of_a_window_are_the_requests_and_the_draft_counts_too() -> None:
    request = asked()
    served = Served(request)
    served.prompt(11)
    batch = served.schedule()
    settled = served.advance(batch, came_back([[12, 13, -1]], [2], [2], 3))
    assert settled == (SettledRow(0, (12, 13), drafted=2, accepted=1),)
    assert request.output_ids == [11, 12, 13]
    assert request.in_flight.steps == 0
    assert (request.drafted, request.accepted) == (0, 0), "those are counted by finish"
    served.finish(settled)
    assert (request.drafted, request.accepted) == (2, 1)
    assert request.phase == "running"


def test_a_step_that_sampled_nothing_settles_nothing_but_is_no_longer_in_flight() -> None:
    request = tiny_request(0, list(range(5, 25)), SamplingParams(max_tokens=8), context=32)
    served = Served(request)
    served.table.limits = replace(LIMITS, token_budget=6)
    batch = served.schedule()
    assert (batch.samples, request.in_flight.steps) == (0, 1)
    assert served.advance(batch, None) == ()
    assert request.in_flight.steps == 0
    assert request.output_ids == []


@pytest.mark.parametrize(
    ("params", "kept", "reason"),
    [
        ({"stop_token_ids": [13]}, (12, 13), "stop"),
        ({"max_tokens": 2}, (12,), "length"),
        ({}, (12, 13, 14), None),
    ],
)
def test_tokens_behind_the_one_that_ends_a_request_are_dropped(
    params: dict[str, Any], kept: tuple[int, ...], reason: str | None
) -> None:
    request = asked(**params)
    served = Served(request)
    served.prompt(11)
    settled = served.advance(served.schedule(), came_back([[12, 13, 14]], [3], [2], 3))
    assert [each.tokens for each in settled] == [kept]
    assert settled[0].accepted == 2, "the device accepted both drafts"
    served.finish(settled)
    assert (request.finish_reason, request.phase) == (reason, "done" if reason else "running")
    assert request.accepted == min(2, len(kept))
    assert list(request.output_ids) == [11, *kept]


def test_whom_another_op_failed_ends_before_its_row_is_settled() -> None:
    request, other = asked(), asked(uid=1)
    served = Served(request, other)
    batch = served.schedule()
    served.failed = (RequestFailure(request.uid, "on purpose"), RequestFailure(77, "long gone"))
    settled = served.advance(batch, came_back([[12], [13]], [1] * 2, [0] * 2, batch.width))
    assert [each.uid for each in settled] == [other.uid]
    served.finish(settled)
    assert (request.error, request.output_ids, other.output_ids) == ("on purpose", [], [13])
    served.table.check_conservation()


def test_a_request_that_ended_while_its_step_was_in_flight_gets_no_more() -> None:
    request, other = asked(0), asked(1)
    served = Served(request, other)
    served.prompt(11, 21)
    batch = served.schedule()
    served.table.finish(request, "cancelled")
    back = came_back([[12], [22]], [1, 1], [0, 0], 3)
    settled = served.advance(batch, back)
    assert settled == (SettledRow(1, (22,)),)
    assert (request.output_ids, other.output_ids) == ([11], [21, 22])
    assert request.in_flight.steps == other.in_flight.steps == 0
    served.finish(settled)
    served.table.take_ended()
    served.table.finish(other, "cancelled")
    served.table.check_conservation()


def test_a_resumed_row_yields_no_token_twice() -> None:
    request = asked()
    served = Served(request)
    served.prompt(11)
    served.finish(served.advance(served.schedule(), came_back([[12]], [1], [0], 3)))
    served.table.preempt(request)
    batch = served.schedule()
    assert [row.forced for row in batch.rows] == [12]
    assert served.advance(batch, came_back([[12]], [1], [0], 1)) == ()
    assert request.output_ids == [11, 12]
    assert request.in_flight.steps == 0


def test_log_probabilities_are_those_of_the_kept_tokens_as_many_as_each_asked_for() -> None:
    first, second, none = asked(0, logprobs=1), asked(1, logprobs=2), asked(2)
    served = Served(first, second, none)
    served.prompt(11, 21, 31)
    first.logprobs.clear()
    second.logprobs.clear()
    batch = served.schedule()
    assert batch.logprobs == 2
    back = came_back([[12, 13], [22], [32]], [2, 1, 1], [2, 2, 2], 3)
    for at in range(9):  # three places of three rows, two alternatives each
        back.logprobs.logprob[at], back.logprobs.rank[at] = -at / 4, at + 1
        for top in range(2):
            back.logprobs.top_tokens.view(-1)[2 * at + top] = 100 + 2 * at + top
            back.logprobs.top_logprobs.view(-1)[2 * at + top] = -(2 * at + top) / 8
    served.advance(batch, back)
    assert first.logprobs == [
        TokenLogprob(12, 0.0, 1, ((100, 0.0),)),
        TokenLogprob(13, -0.25, 2, ((102, -0.25),)),
    ]
    assert second.logprobs == [TokenLogprob(22, -0.75, 4, ((106, -0.75), (107, -0.875)))]
    assert none.logprobs == []


def test_log_probabilities_of_a_prompt_are_said_once_though_it_is_computed_again() -> None:
    request = asked(prompt_logprobs=0)
    served = Served(request)
    batch = served.schedule()
    assert [row.prompt_targets for row in batch.rows] == [(6, 7)]
    back = came_back([[11]], [1], [0], 1)
    back.prompt.logprob[0], back.prompt.logprob[1] = -1.5, -2.5
    back.prompt.rank[0], back.prompt.rank[1] = 3, 4
    for _ in range(2):
        served.table._uncommitted.append(0)
        request.in_flight.firsts += 1
        served.advance(batch, back)
    assert request.prompt_logprobs == [TokenLogprob(6, -1.5, 3), TokenLogprob(7, -2.5, 4)]


def test_log_probabilities_that_are_no_numbers_end_the_request_that_asked_for_them() -> None:
    asks, other = asked(0, logprobs=0), asked(1)
    served = Served(asks, other)
    served.prompt(11, 21)
    back = came_back([[12, 13], [22, 23]], [2, 2], [2, 2], 3)
    back.logprobs.logprob[1] = math.nan
    settled = served.advance(served.schedule(), back)
    assert [each.tokens for each in settled] == [(), (22, 23)]
    served.finish(settled)
    assert (asks.output_ids, [each.token for each in asks.logprobs]) == ([11], [11])
    assert (asks.finish_reason, other.finish_reason) == ("error", None)
    assert "its log-probabilities are NaN: the model, or a node between" in str(asks.error)


def test_log_probabilities_of_a_prompt_that_are_no_numbers_end_its_request() -> None:
    asks, other = asked(0, prompt_logprobs=0), asked(1)
    served = Served(asks, other)
    batch = served.schedule()
    back = came_back([[11], [21]], [1, 1], [0, 0], 1)
    back.prompt.logprob[0], back.prompt.logprob[1] = -1.5, math.nan
    settled = served.advance(batch, back)
    assert [each.uid for each in settled] == [other.uid]
    served.finish(settled)
    assert (asks.output_ids, asks.prompt_logprobs) == ([], [TokenLogprob(6, -1.5, 0)])
    assert "its log-probabilities are NaN" in str(asks.error)
    served.table.check_conservation()


# --- grammars


def grammar_served() -> tuple[Request, Served]:
    request = structured(0, LETTERS)
    served = Served(request)
    served.matchers = MatcherTable(served.table.grammars)
    return request, served


def test_a_matcher_moves_by_what_was_kept_and_goes_when_its_request_has_ended() -> None:
    request, served = grammar_served()
    a, matchers = token("a"), served.matchers
    assert matchers is not None
    served.prompt(a)
    served.finish(served.advance(served.schedule(), came_back([[a, a]], [2], [2], 3)))
    assert request.output_ids == [a, a, a]
    stands = matchers.matchers[0]
    stands.rollback(3)  # three tokens, and no more
    with pytest.raises(Exception, match="cannot undo 1 tokens, 0 were accepted"):
        stands.rollback(1)
    batch = served.schedule()
    served.table.finish(request, "cancelled")
    served.advance(batch, came_back([[a]], [1], [0], 3))
    assert matchers.matchers == {}


def test_a_token_that_the_grammar_forbids_ends_its_request_with_the_reason() -> None:
    request, served = grammar_served()
    served.prompt(token("a"))
    settled = served.advance(served.schedule(), came_back([[3]], [1], [0], 3))
    assert settled[0].tokens == ()
    assert settled[0].error is not None
    served.finish(settled)
    assert request.finish_reason == "error"
    assert request.error == settled[0].error
    assert request.output_ids == [token("a")]


def test_a_failure_of_the_masks_ends_the_request_and_keeps_nothing() -> None:
    request, served = grammar_served()
    served.prompt(token("a"))
    assert served.matchers is not None
    served.matchers.failures[0] = "drafts of another generation"
    settled = served.advance(served.schedule(), came_back([[token("a")]], [1], [0], 3))
    assert settled == (SettledRow(0, (), 0, 0, "drafts of another generation"),)
    assert request.output_ids == [token("a")]


# --- finish


def test_text_is_streamed_and_the_end_is_told_once() -> None:
    heard: list[Increment] = []
    request = asked(stop_token_ids=[13])
    request.deliver = heard.append
    served = Served(request)
    served.prompt(40)
    served.finish(served.advance(served.schedule(), came_back([[41, 13, 9]], [3], [2], 3)))
    assert [each.token_ids for each in heard] == [(40,), (41, 13), ()]
    assert "".join(each.text for each in heard) == request.text != ""
    assert [each.output for each in heard] == [None, None, request.output()]
    assert request.finish_reason == "stop"
    assert (served.table.totals.tokens, served.table.totals.accepted_at) == (3, [1, 1])


def test_a_decoder_that_fails_ends_its_own_request_only() -> None:
    request, other = asked(0), asked(1)

    class Failing:
        def push(self, ids: object) -> str:
            raise OSError("no such character")

        def finish(self) -> str:
            return ""

    request.decoder = Failing()
    served = Served(request, other)
    served.prompt(40, 41)
    assert (request.finish_reason, request.error) == ("error", "OSError: no such character")
    assert (other.phase, other.output_ids) == ("running", [41])
