"""What the log says of a request: all that another rank needs to make the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..requests.params import SamplingParams
from ..requests.request import Request
from ..structured.grammar import GrammarSpec


def spec_of(request: Request) -> dict[str, Any]:
    """A request as plain data. Its settled tokens are part of it: a request may resume."""
    return {
        "uid": request.uid,
        "id": request.id,
        "index": request.index,
        "prompt": request.prompt,
        "prompt_ids": list(request.prompt_ids),
        "params": params_of(request.params),
        "salt": request.cache_salt.hex(),
        "output_ids": list(request.output_ids),
    }


def params_of(params: SamplingParams) -> dict[str, Any]:
    """Parameters as plain data: those that are not the default ones."""
    usual = SamplingParams()
    found: dict[str, Any] = {}
    for each in fields(params):
        value = getattr(params, each.name)
        if value != getattr(usual, each.name):
            found[each.name] = value
    if isinstance(grammar := params.structured_outputs, GrammarSpec):
        found["structured_outputs"] = {"kind": grammar.kind, "source": grammar.source}
    return found


def read_params(found: dict[str, Any]) -> SamplingParams:
    """The parameters of such data. Raises `RequestError`, or `GrammarError`."""
    given = dict(found)
    if (grammar := given.get("structured_outputs")) is not None:
        given["structured_outputs"] = GrammarSpec(grammar["kind"], grammar["source"])
    return SamplingParams.of(given)
