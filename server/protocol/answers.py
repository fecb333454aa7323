"""What the API returns. The answers are written by hand for speed; tests hold them to these."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base: no keys but these."""

    model_config = ConfigDict(extra="forbid")


class ErrorObject(Answer):
    """What went wrong. `param` is the key of the request that is to blame, where one is."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """The body of every error."""

    error: ErrorObject


class PromptTokensDetails(Answer):
    cached_tokens: int = Field(description="Tokens of the prompt that the prefix cache had.")


class CompletionTokensDetails(Answer):
    accepted_prediction_tokens: int = Field(description="Drafts that were kept.")
    rejected_prediction_tokens: int = Field(description="Drafts that were not.")
    reasoning_tokens: int | None = Field(
        default=None, description="Tokens of the reasoning section, where the pipeline has one."
    )


class UsageObject(Answer):
    """Tokens of a call, over all its prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class CompletionLogprobs(Answer):
    """One entry per token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | None = None


class CompletionAnswer(Answer):
    """The answer of /v1/completions. Choice i of prompt p has the index p × n + i."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageObject


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[ChatLogprob]
    refusal: None


class AnsweredFunction(Answer):
    name: str
    arguments: str


class AnsweredCall(Answer):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[AnsweredCall] | None = None


class ChatChoice(Answer):
    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | None = None


class ChatAnswer(Answer):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageObject


class ModelObject(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(Answer):
    """The names that requests may call the model by."""

    object: Literal["list"]
    data: list[ModelObject]


class TokenizeAnswer(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(Answer):
    prompt: str


class VersionAnswer(Answer):
    version: str


class StateAnswer(Answer):
    """`status` is `ok`, or says in a word why not."""

    status: str


ANSWERS: tuple[type[BaseModel], ...] = (
    ErrorAnswer,
    CompletionAnswer,
    ChatAnswer,
    ModelList,
    ModelObject,
    TokenizeAnswer,
    DetokenizeAnswer,
    VersionAnswer,
    StateAnswer,
)
