"""What form the answer of a chat must have: the one grammar that its request asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from ..models.call_format import CallFormat
from .errors import ApiError, invalid_grammar
from .protocol.chat import (
    ChatRequest,
    Function,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    Tool,
)
from .sections import Section
from .tools import Calls, function_at, structural_tag

_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class AnswerForm:
    """The grammar that an answer follows, and by which key the request asks for it.

    `grammar`: made of what the request has; None: its own, if any. `calls`: in what form the answer
    may have calls. `json_key`: by which key the request asks for JSON in their place.
    `section`: what takes the answer apart; None: all of it is text.
    """

    key: str = "structured_outputs"
    grammar: Mapping[str, Any] | None = None
    calls: CallFormat | None = None
    json_key: str = "response_format"
    section: Callable[[], Section] | None = None

    @property
    def params(self) -> Mapping[str, Any]:
        """What it adds to the parameters."""
        return {} if self.grammar is None else {"structured_outputs": self.grammar}

    def refused(self, message: str) -> ApiError:
        """The grammar cannot be followed, for this reason: of tools, with the one that it is of."""
        found = _WITHIN.match(message)
        if found is not None and self.calls is not None and self.grammar is not None:
            name = function_at(found[1], self.grammar["structural_tag"], self.calls)
            message = message[found.end() :]
            if name is None:  # of the answer, where no function is called
                return invalid_grammar(f"json: {message}", self.json_key)
            message = f"the parameters of {name!r}: {message}"
        return invalid_grammar(message, self.key)


_WITHIN = re.compile(r"structural_tag: in (#/\S*/json_schema): json: ")


def form_of(
    asked: ChatRequest, calls: CallFormat | None, keys: Mapping[str, str] = MappingProxyType({})
) -> AnswerForm:
    """The form that `response_format`, tools or `structured_outputs` ask for.

    `calls`: how the model writes calls, where it may make any. `keys`: what the request calls its
    keys, where that is something else. Raises `ApiError` for tools that contradict each other, and
    for `structured_outputs` beside another form of the answer.
    """
    json_key = keys.get("response_format", "response_format")
    wanted = asked.response_format
    schema: Any = None
    if isinstance(wanted, JsonObjectFormat):
        schema = _ANY_OBJECT
    elif isinstance(wanted, JsonSchemaFormat):
        schema = wanted.json_schema.json_schema
        schema = {} if schema is None else schema
    others = [(json_key, schema is not None), ("tools", calls is not None)]
    for name, there in others:
        if there and asked.says("structured_outputs"):
            said = f"{name} and structured_outputs ask for different forms of the answer: give one"
            raise ApiError(400, said, param=name)
    if calls is not None:
        if schema is not None and not isinstance(schema, dict | bool):
            raise ApiError(400, "a JSON Schema is an object or a boolean", param=json_key)
        return _calling(asked, calls, schema, json_key)
    if schema is None:
        return AnswerForm()
    form = {"json_object": True} if schema is _ANY_OBJECT else {"json": schema}
    return AnswerForm(json_key, form)


def _calling(
    asked: ChatRequest, calls: CallFormat, schema: dict[str, Any] | bool | None, json_key: str
) -> AnswerForm:
    """Calls, or beside them what the answer is otherwise: any text, or JSON of a schema."""
    choice = asked.tool_choice
    functions = _chosen(asked.tools or (), choice)
    names = [each.name for each in functions]
    forced = choice == "required" or isinstance(choice, NamedTool)
    tag = structural_tag(
        calls,
        [(each.name, each.parameters) for each in functions],
        forced=forced,
        several=asked.parallel_tool_calls is not False and not isinstance(choice, NamedTool),
        schema=schema,
    )
    or_json = schema is not None and not forced
    section = partial(Calls, calls, names, forced=forced, or_json=or_json)
    return AnswerForm("tools", {"structural_tag": tag}, calls, json_key, section)


def _chosen(tools: tuple[Tool, ...], choice: object) -> list[Function]:
    """The functions that may be called. Raises `ApiError` for one that was not offered."""
    functions = {each.function.name: each.function for each in tools}
    for each in functions.values():
        types = (each.parameters or {}).get("type", "object")
        if types != "object" and not (isinstance(types, list) and "object" in types):
            said = f"arguments are an object, but the type is {json.dumps(types)[:60]}"
            raise ApiError(400, f"the parameters of {each.name!r}: {said}", param="tools")
    if len(functions) < len(tools):
        raise ApiError(400, "two tools have the same name", param="tools")
    if not isinstance(choice, NamedTool):
        return list(functions.values())
    name = choice.function.name
    if name not in functions:
        said = f"tool_choice names {name!r}, which is none of the tools: {', '.join(functions)}"
        raise ApiError(400, said, param="tool_choice")
    return [functions[name]]
