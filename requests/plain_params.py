"""Parameters of a request as plain data, as they travel from process to process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..structured.grammar import GrammarSpec
from .params import SamplingParams


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


def read_params(found: Mapping[str, Any]) -> SamplingParams:
    """The parameters of such data. Raises `RequestError`, or `GrammarError`."""
    given = dict(found)
    if (grammar := given.get("structured_outputs")) is not None:
        given["structured_outputs"] = GrammarSpec(grammar["kind"], grammar["source"])
    return SamplingParams.of(given)
