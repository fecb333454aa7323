"""What travels between a front and its replicas comes out as it went in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.replicas.fleet import About
from stepweave.replicas.front import works
from stepweave.replicas.work import (
    BEAT,
    TAKEN,
    Message,
    Work,
    ended,
    logprobs_of,
    lost_by,
    output_of,
    refusal,
    refused,
    settled,
)
from stepweave.requests.increment import Increment
from stepweave.requests.limits import Limits
from stepweave.requests.moments import RequestTimings
from stepweave.requests.params import RequestError, SamplingParams
from stepweave.requests.request import RequestOutput, TokenLogprob
from stepweave.serving.alike import Likeness, NamedModel
from stepweave.serving.engine import EngineError
from stepweave.structured.grammar import GrammarError
from stepweave.structured.service import QueueFull

LOGPROBS = (TokenLogprob(5, -0.25, 1, ((5, -0.25), (7, float("-inf")))), TokenLogprob(9, -3.0, 4))
PARAMS = [
    SamplingParams(),
    SamplingParams(
        temperature=0.9,
        seed=2**62 + 1,
        stop=("x", "yy"),
        stop_token_ids=(4, 5),
        logit_bias={7: -1.5, 9: 100},
        bad_words=["no"],
        logprobs=0,
        settled_token_ids=(1, 2, 3),
    ),
    SamplingParams(structured_outputs={"json": {"type": "object"}}, reasoning=False, min_tokens=3),
    SamplingParams(structured_outputs={"choice": ["a", 'b"', "ü"]}),
    SamplingParams(structured_outputs={"json_object": True, "reasoning": True}, draft_tokens=0),
]


def travelled(said: Any) -> Any:
    return json.loads(json.dumps(said))


@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
def test_a_work_is_the_same_at_the_other_end(params: SamplingParams) -> None:
    work = Work("cmpl-1/0", 3, (1, 2, 60_000), params, b"\x00\xffsalt")
    assert Work.of(travelled(work.to_json())) == work


def test_going_on_changes_nothing_but_what_is_settled() -> None:
    work = Work("a", 0, (1, 2), SamplingParams(seed=4, logprobs=1))
    moved = work.after([7, 8])
    assert moved.params.settled_token_ids == (7, 8)
    assert moved.after([9]).params.settled_token_ids == (7, 8, 9), "what a caller brings stays"
    assert replace(moved, params=replace(moved.params, settled_token_ids=())) == work


def test_each_of_n_completions_has_its_own_seed_and_name() -> None:
    found = works("r", (1, 2), SamplingParams(n=3, seed=2**63 - 2, temperature=1.0), b"s")
    assert [each.id for each in found] == ["r/0", "r/1", "r/2"]
    assert [each.index for each in found] == [0, 1, 2]
    assert [each.params.seed for each in found] == [2**63 - 2, 2**63 - 1, 0]
    assert {each.params.n for each in found} == {1}
    assert [each.id for each in works("r", (1,), SamplingParams())] == ["r"]


@pytest.mark.parametrize("logprobs", [None, (), LOGPROBS])
def test_what_a_step_settled_is_the_same(logprobs: tuple[TokenLogprob, ...] | None) -> None:
    message = travelled(settled(Increment("a", 1, "tüx", (5, 9), logprobs)))
    assert (message["text"], message["token_ids"]) == ("tüx", [5, 9])
    assert logprobs_of(message) == logprobs


@pytest.mark.parametrize(
    "output",
    [
        RequestOutput("a", "", "text", (1, 2), "length"),
        RequestOutput(
            "a/1",
            "p",
            "",
            (),
            "error",
            drafted=4,
            accepted=2,
            cached_tokens=32,
            error="why",
            logprobs=LOGPROBS,
            prompt_logprobs=(),
            warnings=("w",),
            notes=("n",),
            timings=RequestTimings(queue_s=0.5, total_s=2.0),
        ),
    ],
    ids=["plain", "full"],
)
def test_an_output_is_the_same(output: RequestOutput) -> None:
    found = output_of(travelled(ended(output, "engine")))
    assert found == output
    assert found.timings == output.timings


@pytest.mark.parametrize(
    "error",
    [
        RequestError("too long", code="SW-LENGTH"),
        RequestError("no"),
        GrammarError("json: not a schema"),
        QueueFull("1024 grammars wait to be compiled"),
        EngineError("it drains"),
    ],
    ids=repr,
)
def test_a_refusal_is_raised_as_it_was(error: Exception) -> None:
    found = refusal(travelled(refused(error)))
    assert type(found) is type(error)
    assert f"{found}" == f"{error}"
    assert getattr(found, "code", None) == getattr(error, "code", None)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (refused(EngineError("it drains")), "it drains"),
        (refused(RequestError("full", code="SW-QUEUE-FULL")), None),
        (refused(GrammarError("json: no")), None),
        (ended(RequestOutput("a", "", "", (), "error", error="oom"), "engine"), "oom"),
        (ended(RequestOutput("a", "", "", (), "error", error="json: no"), "grammar"), None),
        (ended(RequestOutput("a", "", "x", (1,), "length"), None), None),
        (settled(Increment("a", 0, "x", (1,))), None),
        (TAKEN, None),
        (BEAT, None),
    ],
    ids=repr,
)
def test_a_replica_serves_no_more_when_its_engine_is_to_blame(
    message: Message, why: str | None
) -> None:
    assert lost_by(travelled(message)) == why


def test_what_is_no_refusal_is_none() -> None:
    with pytest.raises(StopIteration):
        refused(ConfigError.__new__(ConfigError))


def test_what_a_front_knows_of_its_replicas_is_the_same() -> None:
    limits = Limits(
        max_rows=4,
        token_budget=64,
        block_size=16,
        num_blocks=8,
        context_length=128,
        draft_tokens=3,
        max_queue=9,
    )
    models = {"model.name": NamedModel("a/b", "abc"), "nodes.draft.model": NamedModel("c", None)}
    about = About(limits, "abc", Likeness("def", models), {"temperature": 0.5})
    assert About.of(travelled(about.to_json())) == about
