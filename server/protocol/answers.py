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

    prompt_tokens: int = Field(description="Of all prompts, each counted once.")
    completion_tokens: int = Field(description="Of all choices.")
    total_tokens: int = Field(description="The sum of both.")
    prompt_tokens_details: PromptTokensDetails = Field(description="`cached_tokens`.")
    completion_tokens_details: CompletionTokensDetails = Field(
        description="`accepted_prediction_tokens`, `rejected_prediction_tokens`, "
        "`reasoning_tokens`."
    )
    warnings: list[str] | None = Field(
        default=None, description="What of a grammar is not enforced, with `strict: false`."
    )


FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
_FINISH = "Why it ended. In a chunk: null but in the last of a choice."


class CompletionLogprobs(Answer):
    """One entry per token in each list."""

    tokens: list[str] = Field(
        description="The text of each; `bytes:\\xe2` for a part of a character."
    )
    token_logprobs: list[float | None] = Field(
        description="The model's own; −9999 for minus infinity, null for the first of a prompt."
    )
    top_logprobs: list[dict[str, float] | None] = Field(
        description="The most probable tokens there."
    )
    text_offset: list[int] = Field(description="Where it begins in the text, in characters.")


class CompletionChoice(Answer):
    index: int = Field(description="That of its prompt times `n`, plus its own.")
    text: str = Field(
        description="The completion, without the stop string; with `echo` after its prompt."
    )
    logprobs: CompletionLogprobs | None = Field(description="If they were asked for.")
    finish_reason: FinishReason = Field(description=_FINISH)
    token_ids: list[int] | None = Field(
        default=None, description="With `return_token_ids`: its tokens, a stop token included."
    )


class CompletionAnswer(Answer):
    """The answer of /v1/completions. Choice i of prompt p has the index p × n + i."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str = Field(description="The name that the request calls it by.")
    system_fingerprint: str = Field(description="The same for equal plans.")
    choices: list[CompletionChoice]
    usage: UsageObject


class TopLogprob(Answer):
    token: str = Field(description="Its text; `bytes:\\xe2` for a part of a character.")
    logprob: float = Field(description="The model's own; −9999 for minus infinity.")
    bytes: list[int] = Field(description="What it spells, in UTF-8.")


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob] = Field(description="The most probable tokens there.")


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
    content: str | None = Field(description="The text; null where there are calls and no text.")
    refusal: None = Field(description="Always null.")
    reasoning_content: str | None = Field(
        default=None, description="The reasoning section, where the pipeline has one."
    )
    tool_calls: list[AnsweredCall] | None = Field(
        default=None, description="Each with `id`, `type`, and `function`: `name`, `arguments`."
    )


class ChatChoice(Answer):
    index: int = Field(description="Which of the `n` it is, from 0.")
    message: AnsweredMessage = Field(description="In a chunk `delta`: what is added to it.")
    logprobs: ChatLogprobs | None = Field(description="If they were asked for.")
    finish_reason: FinishReason = Field(description=_FINISH)
    token_ids: list[int] | None = Field(
        default=None, description="With `return_token_ids`: its tokens, a stop token included."
    )


class ChatAnswer(Answer):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Seconds since 1970.")
    model: str = Field(description="The name that the request calls it by.")
    system_fingerprint: str = Field(description="The same for equal plans.")
    choices: list[ChatChoice]
    usage: UsageObject


class ModelObject(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
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
