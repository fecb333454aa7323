"""One request of a load, as a client states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .choices import Endpoint

Messages = tuple[Mapping[str, str], ...]
TokenIds = list[int]


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of a model: a text, token ids or a conversation, and parameters of the request.

    `max_tokens` None leaves the length to the server. `at_s` is when the request is due, in
    seconds from the first one; None: whenever the arrivals say. `schema` is a JSON Schema that the
    answer must follow, by its name.
    """

    name: str
    prompt: str | TokenIds | Messages
    max_tokens: int | None = None
    at_s: float | None = None
    schema: tuple[str, Any] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> Messages:
        """The prompt as a conversation."""
        if isinstance(self.prompt, str):
            return ({"role": "user", "content": self.prompt},)
        assert not isinstance(self.prompt, list), "no conversation is made of token ids"
        return self.prompt


def body(
    ask: Ask, endpoint: Endpoint, model: str, more: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The JSON body of the request. What the ask says itself goes before `more`."""
    found: dict[str, Any] = {**more, "model": model, "stream": True}
    if endpoint is Endpoint.CHAT:
        found["messages"] = list(ask.messages)
    else:
        assert isinstance(ask.prompt, str | list), "a conversation has no place in /v1/completions"
        found["prompt"] = ask.prompt
    if ask.max_tokens is not None:
        found["max_tokens"] = ask.max_tokens
    if ask.schema is not None:
        found |= _following(*ask.schema, endpoint)
    return {**found, **_named(ask.parameters, endpoint)}


def _following(name: str, schema: Any, endpoint: Endpoint) -> dict[str, Any]:
    """That the answer must follow the schema: the OpenAI API has no word for it but in a chat."""
    if endpoint is Endpoint.COMPLETIONS:
        return {"structured_outputs": {"json": schema}}
    said = {"name": name, "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": said}}


def _named(parameters: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """Log-probabilities have two names in a chat, and one otherwise."""
    found = dict(parameters)
    if endpoint is Endpoint.CHAT and type(found.get("logprobs")) is int:
        found |= {"logprobs": True, "top_logprobs": found["logprobs"]}
    return found
