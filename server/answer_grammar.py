"""What form the answer of a chat must have: the one grammar that its request asks for."""

from __future__ import annotations

from typing import Any

from ..models.call_format import CallFormat
from .errors import ApiError
from .protocol.chat import (
    ChatRequest,
    Function,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    Tool,
)
from .tools import structural_tag

_ANY_OBJECT = {"type": "object"}


def grammar_of(asked: ChatRequest, calls: CallFormat | None) -> dict[str, Any]:
    """The parameter `structured_outputs`, where `response_format` or tools ask for one.

    `calls`: how the model writes calls, where it may make any. Raises `ApiError` for tools that
    contradict each other, and for `structured_outputs` beside another form of the answer.
    """
    wanted = asked.response_format
    schema: Any = None
    if isinstance(wanted, JsonObjectFormat):
        schema = _ANY_OBJECT
    elif isinstance(wanted, JsonSchemaFormat):
        schema = wanted.json_schema.json_schema
        schema = {} if schema is None else schema
    others = [("response_format", schema is not None), ("tools", calls is not None)]
    for name, there in others:
        if there and asked.says("structured_outputs"):
            said = f"{name} and structured_outputs ask for different forms of the answer: give one"
            raise ApiError(400, said, param=name)
    if calls is not None:
        return {"structured_outputs": {"structural_tag": _calling(asked, calls, schema)}}
    if schema is None:
        return {}
    form = {"json_object": True} if schema is _ANY_OBJECT else {"json": schema}
    return {"structured_outputs": form}


def form_key(asked: ChatRequest, calls: CallFormat | None) -> str:
    """The key of the request that asks for the grammar of `grammar_of`. Raises nothing."""
    if asked.says("structured_outputs"):
        return "structured_outputs"
    return "response_format" if calls is None else "tools"


def _calling(asked: ChatRequest, calls: CallFormat, schema: Any) -> dict[str, Any]:
    """Calls, or beside them what the answer is otherwise: any text, or JSON of a schema."""
    choice = asked.tool_choice
    if schema is not None and not isinstance(schema, dict | bool):
        raise ApiError(400, "a JSON Schema is an object or a boolean", param="response_format")
    return structural_tag(
        calls,
        [(each.name, each.parameters) for each in _chosen(asked.tools or (), choice)],
        forced=choice == "required" or isinstance(choice, NamedTool),
        several=asked.parallel_tool_calls is not False and not isinstance(choice, NamedTool),
        schema=schema,
    )


def _chosen(tools: tuple[Tool, ...], choice: object) -> list[Function]:
    """The functions that may be called. Raises `ApiError` for one that was not offered."""
    functions = {each.function.name: each.function for each in tools}
    if len(functions) < len(tools):
        raise ApiError(400, "two tools have the same name", param="tools")
    if not isinstance(choice, NamedTool):
        return list(functions.values())
    name = choice.function.name
    if name not in functions:
        said = f"tool_choice names {name!r}, which is none of the tools: {', '.join(functions)}"
        raise ApiError(400, said, param="tool_choice")
    return [functions[name]]
