"""What /v1/responses returns. The answers are made by `ResponseForm`; tests hold them to these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .answers import Answer, ChatLogprob
from .responses import Status

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Answer):
    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(max_length=0)
    logprobs: list[ChatLogprob]


class ReasoningText(Answer):
    type: Literal["reasoning_text"]
    text: str


class OutputMessage(Answer):
    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(Answer):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str


class OutputReasoning(Answer):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[Any] = Field(max_length=0)
    content: list[ReasoningText]


class InputTokensDetails(Answer):
    cached_tokens: int = Field(description="Tokens of the input that the prefix cache had.")
    cache_write_tokens: int = Field(description="Always 0: writing is not counted.")


class OutputTokensDetails(Answer):
    reasoning_tokens: int = Field(description="Tokens of the reasoning section.")
    accepted_prediction_tokens: int = Field(description="Drafts that were kept.")
    rejected_prediction_tokens: int = Field(description="Drafts that were not.")


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    warnings: list[str] | None = Field(
        default=None, description="What of a grammar is not enforced, with `strict: false`."
    )


class ResponseFailure(Answer):
    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(Answer):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(Answer):
    """The answer of /v1/responses. Beside these it says what was asked for."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Seconds since 1970.")
    status: ResponseStatus = Field(
        description="`incomplete` where `max_output_tokens` were written; `failed` where the "
        "service has ended before the answer."
    )
    error: ResponseFailure | None = Field(description="Why it failed.")
    incomplete_details: IncompleteDetails | None
    model: str = Field(description="The name that the request calls it by.")
    output: list[OutputMessage | OutputCall | OutputReasoning] = Field(
        description="Its reasoning, its text, its calls, each an item."
    )
    usage: ResponseUsage | None = Field(description="Null until it has ended.")
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, None]
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None
