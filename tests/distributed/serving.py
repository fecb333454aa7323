"""Run on each of two ranks: the service of rank 0 as its clients see it, and what they then see."""

from __future__ import annotations

import json
import os
from time import sleep
from typing import Any

import httpx

from stepweave import LLM, AsyncLLM
from stepweave.distributed.errors import GroupEnded
from stepweave.serving.service import Service
from tests.distributed.cases import SCHEMA
from tests.distributed.mutants import MUTANTS
from tests.server.in_thread import running

PIPELINE = "async_eagle3_grammar"
PROMPT = "Extract name and age as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw."
LATE_S = 0.5
ASKED = {"max_tokens": 48, "temperature": 0.0, "structured_outputs": {"json": SCHEMA}}


def overrides(ranks: int, pipeline: str = PIPELINE) -> dict[str, Any]:
    """What the pipeline's file is to say."""
    model = {"dtype": "float64", "invariant": False, "parallel": {"tensor": ranks}}
    masks = {} if pipeline == "async" else {"nodes.bitmask.compile_limit_s": None}
    return {"model": model, "graphs": False, **masks}


def served() -> dict[str, Any] | None:
    """What rank 0 serves with the other, and what it generates alone; None on the other."""
    if os.environ["RANK"] != "0":
        follow()
        return None
    with LLM(pipeline=PIPELINE, overrides=overrides(1)) as llm:
        [alone] = llm.generate(PROMPT, ASKED)
    with running(pipeline=PIPELINE, overrides=overrides(2)) as service, service.client() as client:
        pieces = streamed(client)
        whole = client.post("/v1/completions", json={"prompt": PROMPT, **ASKED}).json()
        counted = "vllm:generation_tokens_total"
        [line] = [
            each for each in client.get("/metrics").text.splitlines() if each.startswith(counted)
        ]
        return {
            "alone": [alone.text, alone.accepted],
            "streamed": pieces,
            "whole": whole["choices"][0]["text"],
            "accepted": service.llm.summary()["accepted"],
            "counted": float(line.split()[-1]),
            "tokens": len(alone.token_ids),
            "health": [client.get(path).status_code for path in ("/health", "/ready")],
        }


def broken(mutant: str) -> dict[str, Any]:
    """What a client of rank 0 is told when the group ends, and what another rank raises."""
    MUTANTS[mutant]()
    if os.environ["RANK"] != "0":
        told_late()
        return {"failure": follow("async")}
    with (
        running(pipeline="async", overrides=overrides(2, "async")) as service,
        service.client() as client,
    ):
        body = {"prompt": PROMPT, "max_tokens": 64, "temperature": 0.0, "ignore_eos": True}
        answers = [client.post("/v1/completions", json=body) for _ in range(2)]
        return {
            "failure": answers[0].json()["error"]["message"],
            "refusal": answers[1].json()["error"]["message"],
            "statuses": [each.status_code for each in answers],
            "health": [client.get(path).status_code for path in ("/health", "/ready")],
            "unended": service.llm.service.unended,
        }


def told_late() -> None:
    """Threads that run and wait here see the end before the service is told of it."""
    tell = Service._group_ended

    def late(self: Service, failure: GroupEnded) -> None:
        sleep(LATE_S)
        tell(self, failure)

    Service._group_ended = late  # type: ignore[method-assign]


def streamed(client: httpx.Client) -> list[str]:
    """The pieces of text of a streamed answer."""
    body = {"prompt": PROMPT, "stream": True, **ASKED}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [choice["text"] for line in lines for choice in json.loads(line)["choices"]]


def follow(pipeline: str = PIPELINE) -> str:
    """Follow rank 0; what has ended the group, if anything did."""
    try:
        llm = AsyncLLM(pipeline=pipeline, overrides=overrides(2, pipeline))
        llm.follow()
    except GroupEnded as failure:
        return failure.message
    return ""
