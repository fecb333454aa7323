"""POST /v1/responses: a conversation of items continued, with tools. Nothing of it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from ...configs.contents import Text
from ...requests.complaints import cut
from ...requests.keys import Listed, at_most, with_keys_of
from ...requests.limits import MAX_LOGPROBS
from ...requests.params import SamplingParams
from .base import Body, json_object
from .chat import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Function,
    FunctionName,
    JsonObjectFormat,
    JsonSchema,
    NamedFunction,
    TextFormat,
)
from .sampling import DEFAULTS, MEDIA, REFUSED, Drawn, ShortText

LOGPROBS = "message.output_text.logprobs"

_TEXTS = ("input_text", "output_text", "text")
_PART_KEYS = frozenset({"type", "text", "annotations", "logprobs"})  # as our own answers have them


def _joined(content: Any) -> Any:
    """Parts as one text, with a line break between them. Raises `ValueError` for other parts."""
    if not isinstance(content, list | tuple):
        return content
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            what = f"is of type {cut(kind)!r}" if isinstance(kind, str) else "is not a text part"
            raise ValueError(f"part {index} {what}: parts are {' or '.join(_TEXTS[:2])}, with text")
        if unknown := sorted(part.keys() - _PART_KEYS):
            raise ValueError(f"part {index} has the unknown key {cut(unknown[0])!r}")
        texts.append(part["text"])
    return "\n".join(texts)


class InputTextPart(Body):
    """A part of a content."""

    type: Literal["input_text", "output_text", "text"]
    text: Text


class ReasoningPart(Body):
    """A part of a reasoning item."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


Content = Annotated[
    Text, BeforeValidator(_joined, json_schema_input_type=str | tuple[InputTextPart, ...])
]
Status = Literal["in_progress", "completed", "incomplete"]
_Parts = Annotated[
    tuple[ReasoningPart, ...], Field(max_length=MAX_MESSAGES, fail_fast=True), Listed
]


class Item(Body):
    """Base: what an answer gave the item, which says nothing to the model."""

    id: ShortText | None = None
    status: Status | None = None


class MessageItem(Item):
    """A turn; `developer` is another word for `system`."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


def _object(text: str) -> str:
    if json_object(text) is None:
        raise ValueError("must be the text of a JSON object")
    return text


class CallItem(Item):
    """A call that the model made in an earlier turn."""

    type: Literal["function_call"]
    call_id: ShortText
    name: FunctionName
    arguments: Annotated[Text, AfterValidator(_object)]


class CallOutputItem(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: ShortText
    output: Content


class ReasoningItem(Item):
    """What the model reasoned in an earlier turn."""

    type: Literal["reasoning"]
    summary: _Parts = ()
    content: _Parts | None = None
    REFUSED: ClassVar = {"encrypted_content": ("the service encrypts nothing", ())}


def _kind(given: Any) -> str:
    if isinstance(given, dict):
        kind = given.get("type")
        return "message" if kind is None else str(kind)[:80]
    return str(getattr(given, "type", "message"))


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]
Items = Annotated[
    tuple[InputItem, ...], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), Listed
]


def _text_or_items(given: Any) -> str | None:
    if isinstance(given, str):
        return "text"
    return "items" if isinstance(given, list | tuple) else None


class FunctionTool(Function):
    """A function that the model may call; functions are the only kind of tool."""

    type: Literal["function"]


class NamedFunctionTool(NamedFunction):
    """The one function that the model must call."""

    type: Literal["function"]


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedFunctionTool, Tag("tool")],
    Discriminator(lambda given: "tool" if isinstance(given, dict | NamedFunctionTool) else "mode"),
]


class SchemaFormat(JsonSchema):
    """A schema that the answer follows."""

    type: Literal["json_schema"]


class TextConfig(Body):
    """What the text of an answer looks like."""

    format: (
        Annotated[
            TextFormat | JsonObjectFormat | SchemaFormat,
            Field(discriminator="type"),
        ]
        | None
    ) = None
    REFUSED: ClassVar = {"verbosity": ("ask for it in a message", ("medium",))}


_KEPT = "the service keeps nothing of a request; send the items of the conversation in input"


@with_keys_of(
    SamplingParams,
    without={"prompt_logprobs", "logprobs", "n", "max_tokens", "settled_token_ids", "adapter"},
    says=DEFAULTS,
)
class _ResponseSampling(Drawn):
    """The keys of `SamplingParams` that say how one answer is drawn."""


class ResponsesRequest(_ResponseSampling):
    """The body of POST /v1/responses."""

    input: Annotated[Text, Tag("text")] | Annotated[Items, Tag("items")] = Field(
        discriminator=Discriminator(
            _text_or_items,
            custom_error_type="text_or_items",
            custom_error_message="must be a text or a list of items",
        ),
        description="What the user says, or the items of the conversation.",
    )
    instructions: Text | None = Field(
        default=None, description="A message of the system, before the conversation."
    )
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="Tokens generated at most. Not given: `max_new_tokens` of the model's "
        "generation_config.json, or all that there is room for.",
    )
    text: TextConfig | None = Field(
        default=None,
        description="With `format`: text, any JSON object, or JSON that follows a schema.",
    )
    tools: (
        Annotated[tuple[FunctionTool, ...], Field(max_length=MAX_TOOLS, fail_fast=True), Listed]
        | None
    ) = Field(default=None, description="The functions that the model may call.")
    tool_choice: Choice | None = Field(
        default=None,
        description="Whether the model calls functions. Not given: `auto` if there are tools.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether one answer may have several calls. Not given: true."
    )
    include: (
        Annotated[
            tuple[Literal["message.output_text.logprobs"], ...],
            Field(max_length=8, fail_fast=True),
            Listed,
        ]
        | None
    ) = Field(
        default=None,
        description=f"`{LOGPROBS}`: return the log-probability of each token of the text.",
    )
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="The same, and so many of the most probable tokens at its place.",
    )
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=64)],
                Annotated[str, Field(max_length=512)],
            ],
            Field(max_length=16),
            at_most(16),
        ]
        | None
    ) = Field(default=None, description="The answer has it too.")
    REFUSED: ClassVar = {
        **{key: value for key, value in REFUSED.items() if key != "metadata"},
        "store": (_KEPT, (False,)),
        "previous_response_id": (_KEPT, ()),
        "conversation": (_KEPT, ()),
        "background": ("the answer comes with the request; see stream", (False,)),
        "background_options": ("the answer comes with the request; see stream", ()),
        "prompt": ("the service has no stored prompts; use instructions and input", ()),
        "truncation": ("shorten the input before it is sent", ("disabled",)),
        "reasoning": (
            "the model's template decides how it reasons",
            ({},),
        ),
        "stream_options": ("events are sent as they are", ({}, {"include_obfuscation": False})),
        "max_tool_calls": ("the service calls no tools itself", ()),
        "max_tokens": ("use max_output_tokens", ()),
        "n": ("a response is one answer; use /v1/chat/completions", (1,)),
        "response_format": ('use text: {"format": {…}}', ()),
        "messages": ("use input", ()),
        "context_management": ("shorten the input before it is sent", ([],)),
        "moderation": ("the service judges no text", ()),
        "safety_identifier": ("use user", ()),
        "prompt_cache_key": ("the prefix cache finds equal beginnings by itself", ()),
        "prompt_cache_options": ("the prefix cache finds equal beginnings by itself", ()),
        "prompt_cache_retention": ("the prefix cache finds equal beginnings by itself", ()),
        "image": (MEDIA, ()),
        "access_programs": ("there are none", ()),
    }

    @property
    def logprobs_of(self) -> int | None:
        """Of how many alternatives beside each token; None: no log-probabilities."""
        if self.top_logprobs is None and not self.include:
            return None
        return self.top_logprobs or 0

    @model_validator(mode="after")
    def _consistent(self) -> ResponsesRequest:
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise ValueError("tool_choice needs tools")
        if self.logprobs_of is not None and self.tools:
            raise ValueError("include and top_logprobs are for answers without tools")
        return self
