"""POST /v1/chat/completions: a conversation continued, with tools."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from ...configs.contents import Content, Text, UserContent
from ...requests.keys import Listed
from ...requests.limits import MAX_LOGPROBS
from .base import Body
from .sampling import MEDIA, REFUSED, Generating, ShortText

MAX_MESSAGES = 1024
MAX_TOOLS = 128
MAX_CALLS = 128

FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


def _finite(schema: Any) -> Any:
    """An answer has it as JSON, which has no NaN; and 1e999 is read as infinite."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, float) and not isfinite(part):
            raise ValueError("has a number that is not finite: NaN, infinite, or too large")
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part
    return schema


class CalledFunction(Body):
    """What the model called: a name, and its arguments as JSON text."""

    name: FunctionName
    arguments: Text
    UNREAD: ClassVar = ("parsed_arguments",)


class ToolCall(Body):
    """A call that the model made in an earlier turn."""

    id: ShortText
    type: Literal["function"] = "function"
    function: CalledFunction
    UNREAD: ClassVar = ("index",)


class SystemMessage(Body):
    """What the model is told about the conversation; `developer` is another word for `system`."""

    role: Literal["system", "developer"]
    content: Content
    name: ShortText | None = None


class UserMessage(Body):
    """A turn of the user."""

    role: Literal["user"]
    content: UserContent
    name: ShortText | None = None


class AssistantMessage(Body):
    """A turn of the model: text, calls, or both."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: Text | None = None
    tool_calls: (
        Annotated[tuple[ToolCall, ...], Field(max_length=MAX_CALLS, fail_fast=True), Listed] | None
    ) = None
    name: ShortText | None = None
    UNREAD: ClassVar = ("parsed",)
    REFUSED: ClassVar = {
        "function_call": ("use tool_calls", ()),
        "refusal": ("write it as content", ()),
        "audio": (MEDIA, ()),
        "annotations": ("the model is not told of them", ([],)),
        "reasoning": ("use reasoning_content", ()),
    }

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError("an assistant's message needs content or tool_calls")
        return self


class ToolMessage(Body):
    """The result of a call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: ShortText
    name: ShortText | None = None


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class Function(Body):
    """A function that the model may call."""

    name: FunctionName
    description: Text | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_finite)] | None = Field(
        default=None, description="JSON Schema of its arguments. Not given: it has none."
    )
    strict: bool | None = Field(
        default=None, description="Arguments follow the schema in any case."
    )


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: FunctionName


class NamedTool(Body):
    """The one function that the model must call."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")] | Annotated[NamedTool, Tag("tool")],
    Discriminator(lambda given: "tool" if isinstance(given, dict | NamedTool) else "mode"),
]
"""Whether functions are called: none, as the model likes, at least one, or this one."""


class JsonSchema(Body):
    """A schema that the answer follows."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    json_schema: Annotated[Any, AfterValidator(_finite)] = Field(default=None, alias="schema")
    strict: bool | None = Field(default=None, description="The answer follows it in any case.")


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class ChatRequest(Generating):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[
        tuple[Message, ...],
        Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
        Listed,
    ] = Field(description="The conversation, formatted by the model's chat template.")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=1 << 20, description="The same as `max_tokens`."
    )
    logprobs: bool | None = Field(
        default=None, description="Return the log-probability of each token."
    )
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="With `logprobs`: also of so many of the most probable tokens at its place.",
    )
    response_format: ResponseFormat | None = Field(
        default=None, description="What the answer looks like: text, any JSON object, or a schema."
    )
    tools: (
        Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS, fail_fast=True), Listed] | None
    ) = Field(default=None, description="The functions that the model may call.")
    tool_choice: ToolChoice | None = Field(
        default=None,
        description="Whether the model calls functions. Not given: `auto` if there are tools.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether one answer may have several calls. Not given: true."
    )
    include_reasoning: bool | None = Field(
        default=None,
        description="Return the reasoning section, as `reasoning_content`. Not given: true.",
    )
    REFUSED: ClassVar = {
        **REFUSED,
        "functions": ("use tools", ([],)),
        "function_call": ("use tool_choice", ("none",)),
        "modalities": ("answers are text", (["text"],)),
        "audio": (MEDIA, ()),
        "prediction": ("drafts come from the pipeline's drafter; see draft_tokens", ()),
        "web_search_options": ("the service reaches no other", ()),
        "reasoning_effort": ("the model's template decides how it reasons", ()),
        "verbosity": ("ask for it in a message", ()),
        "safety_identifier": ("use user", ()),
        "prompt_cache_key": ("the prefix cache finds equal beginnings by itself", ()),
        "prompt_cache_retention": ("the prefix cache finds equal beginnings by itself", ()),
        "prompt_cache_options": ("the prefix cache finds equal beginnings by itself", ()),
        "moderation": ("the service judges no text", ()),
        "chat_template": ("the model's own template is used", ()),
        "chat_template_kwargs": ("the model's own template is used as it is", ({},)),
        "add_generation_prompt": ("the answer begins a turn", (True,)),
        "continue_final_message": ("the answer begins a turn", (False,)),
        "add_special_tokens": ("the model's own template writes them", (False,)),
        "documents": ("write them into a message", ()),
        "echo": ("the answer is the completion alone", (False,)),
    }

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if not self.tools and self.tool_choice not in (None, "none"):
            raise ValueError("tool_choice needs tools")
        if not self.tools and self.parallel_tool_calls is not None and self.tools is None:
            raise ValueError("parallel_tool_calls needs tools")
        return self
