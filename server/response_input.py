"""A request for a response as the conversation that it is: the same, in the words of chats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from ..requests.complaints import complaint
from .errors import ApiError
from .protocol.chat import (
    AssistantMessage,
    CalledFunction,
    ChatRequest,
    Function,
    JsonSchema,
    JsonSchemaFormat,
    Message,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from .protocol.responses import (
    CallItem,
    CallOutputItem,
    FunctionTool,
    InputItem,
    MessageItem,
    NamedFunctionTool,
    ReasoningItem,
    ResponsesRequest,
    SchemaFormat,
)

PARAMS = {
    "messages": "input",
    "prompt": "input",
    "response_format": "text",
    "max_tokens": "max_output_tokens",
}
"""What is to blame, by what a chat calls it."""


def as_chat(asked: ResponsesRequest) -> ChatRequest:
    """The chat that asks for the same. Its parts have been checked, each by the same rule.

    Raises `ApiError` where the parts of one message are too many, or too long together.
    """
    choice = asked.tool_choice
    chat: ChatRequest = ChatRequest.model_construct(
        **asked.parameters(),
        model=asked.model,
        stream=asked.stream,
        user=asked.user,
        messages=_messages(asked),
        max_completion_tokens=asked.max_output_tokens,
        response_format=_format(asked),
        logprobs=asked.logprobs_of is not None,
        top_logprobs=asked.logprobs_of,
        tools=tuple(_tool(each) for each in asked.tools or ()) or None,
        tool_choice=_named(choice) if isinstance(choice, NamedFunctionTool) else choice,
        parallel_tool_calls=asked.parallel_tool_calls,
    )
    return chat


def _messages(asked: ResponsesRequest) -> tuple[Message, ...]:
    said: list[Message] = []
    if asked.instructions is not None:
        said.append(SystemMessage(role="system", content=asked.instructions))
    if isinstance(asked.input, str):
        return (*said, UserMessage(role="user", content=asked.input))
    return (*said, *_turns(asked.input))


def _turns(items: Sequence[InputItem]) -> Iterable[Message]:
    """What the model said in a row is one message: its reasoning, its text, its calls."""
    own = _Own()
    for item in items:
        if isinstance(item, ReasoningItem):
            if own.content is not None or own.calls:
                yield from own.said()
            own.reasoning += "".join(part.text for part in item.content or ())
        elif isinstance(item, MessageItem) and item.role == "assistant":
            if own.content is not None or own.calls:
                yield from own.said()
            own.content = item.content
        elif isinstance(item, CallItem):
            function = CalledFunction(name=item.name, arguments=item.arguments)
            own.calls.append(ToolCall(id=item.call_id, function=function))
        else:
            yield from own.said()
            yield _other(item)
    yield from own.said()


def _other(item: MessageItem | CallOutputItem) -> Message:
    if isinstance(item, CallOutputItem):
        return ToolMessage(role="tool", content=item.output, tool_call_id=item.call_id)
    if item.role == "user":
        return UserMessage(role="user", content=item.content)
    return SystemMessage(role="system", content=item.content)


class _Own:
    """A message of the model that is being put together."""

    def __init__(self) -> None:
        self._clear()

    def said(self) -> Iterable[AssistantMessage]:
        """The message, if there is one; then it begins anew."""
        if self.content is not None or self.calls or self.reasoning:
            try:
                yield AssistantMessage(
                    role="assistant",
                    content=self.content if self.content is not None or self.calls else "",
                    reasoning_content=self.reasoning or None,
                    tool_calls=tuple(self.calls) or None,
                )
            except ValidationError as error:
                told = complaint(AssistantMessage, dict(error.errors(include_url=False)[0]))
                said = f"what the model said in a row is one message, and its {told}"
                raise ApiError(400, f"input: {said}", param="input") from error
        self._clear()

    def _clear(self) -> None:
        self.reasoning = ""
        self.content: str | None = None
        self.calls: list[ToolCall] = []


def _format(asked: ResponsesRequest) -> ResponseFormat | None:
    wanted = None if asked.text is None else asked.text.format
    if not isinstance(wanted, SchemaFormat):
        return wanted
    schema = JsonSchema(name=wanted.name, schema=wanted.json_schema)
    return JsonSchemaFormat(type="json_schema", json_schema=schema)


def _tool(tool: FunctionTool) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.parameters)
    return Tool(type="function", function=function)


def _named(choice: NamedFunctionTool) -> NamedTool:
    return NamedTool(type="function", function=NamedFunction(name=choice.name))
