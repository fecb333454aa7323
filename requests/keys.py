"""The parameters of a request, key by key: one rule for each, wherever it comes from.

A line of a prompts file has these keys beside its prompt, and `SamplingParams` is checked by them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .limits import MAX_BIASES, MAX_LOGPROBS, MAX_STOP_TOKENS


def _whole_characters(text: str) -> str:
    """JSON can write half of a surrogate pair, and Python can hold one; no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is not text") from None
    return text


def _listed(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _one_or_listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else _listed(value)


def _ids_as_numbers(value: Any) -> Any:
    """JSON has token ids as texts, where they are keys."""
    if not isinstance(value, dict):
        return value
    return {
        int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key: bias
        for key, bias in value.items()
    }


WholeCharacters = AfterValidator(_whole_characters)
Choice = Annotated[str, Field(max_length=4096), WholeCharacters]
StopString = Annotated[str, Field(min_length=1, max_length=256), WholeCharacters]
Listed = BeforeValidator(_listed)
OneOrListed = BeforeValidator(_one_or_listed, json_schema_input_type=str | tuple[StopString, ...])


class Keys(BaseModel):
    """Base of what a request says: no other keys, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class StructuredOutputs(Keys):
    """The grammar that the output must follow: exactly one of these.

    Whether it *is* a grammar is for the engine to find out: one that is not fails its request
    alone, while a line that breaks this form fails the file.
    """

    json_schema: Any = Field(
        default=None, alias="json", description="The output follows this JSON Schema."
    )
    json_object: bool | None = Field(
        default=None, description="true: the output is any JSON object."
    )
    regex: str | None = Field(
        default=None, max_length=65_536, description="The output matches this regular expression."
    )
    grammar: str | None = Field(
        default=None,
        max_length=262_144,
        description="The output follows this grammar: EBNF whose first rule is `root`.",
    )
    choice: Annotated[tuple[Choice, ...], Listed] | None = Field(
        default=None, max_length=4096, description="The output is one of these texts."
    )
    structural_tag: dict[str, Any] | None = Field(
        default=None, description="The output is free text in which tags open structured parts."
    )
    reasoning: bool | None = Field(
        default=None,
        description="Whether a reasoning section comes before the grammar. Not given: as the "
        "pipeline is configured.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> StructuredOutputs:
        fields = type(self).model_fields.items()
        said = [info.alias or name for name, info in fields if name != "reasoning"]
        if len(self.request()) != 1:
            raise ValueError(f"needs exactly one of {', '.join(said)}")
        if self.json_object is False:
            raise ValueError("json_object can only be true; leave it out otherwise")
        return self

    def request(self) -> dict[str, Any]:
        """The one kind asked for, under its name in a request."""
        return self.model_dump(by_alias=True, exclude_none=True, exclude={"reasoning"})


class SamplingKeys(Keys):
    """How to draw tokens; what is not given, or None, is as `SamplingParams` has it."""

    max_tokens: int | None = Field(
        default=None, ge=1, le=1 << 20, description="Tokens generated at most. Not given: 128."
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Divides the logits before a token is drawn; 0 is greedy. Not given: 0.",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Draw only from the smallest set of most probable tokens whose "
        "probabilities sum to at least this; 1: off.",
    )
    top_k: int | None = Field(
        default=None,
        ge=0,
        le=1 << 24,
        description="Draw only from this many of the most probable tokens; 0: from all tokens.",
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="Draw only tokens with at least this share of the most probable token's "
        "probability; 0: off.",
    )
    presence_penalty: float | None = Field(
        default=None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Subtracted from the logit of each token that is already in the output; "
        "0: off.",
    )
    frequency_penalty: float | None = Field(
        default=None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="Subtracted from a token's logit once for each time it is in the output; "
        "0: off.",
    )
    repetition_penalty: float | None = Field(
        default=None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="Makes tokens that are in the prompt or the output less probable (above "
        "1) or more (below 1); 1: off.",
    )
    logit_bias: (
        Annotated[
            dict[int, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]],
            BeforeValidator(_ids_as_numbers),
        ]
        | None
    ) = Field(
        default=None,
        max_length=MAX_BIASES,
        description="By token id: a number from -100 to 100 that is added to the token's logit.",
    )
    bad_words: Annotated[tuple[StopString, ...], Listed] = Field(
        default=(), max_length=128, description="Texts that the output must not contain."
    )
    min_tokens: int | None = Field(
        default=None,
        ge=0,
        le=1 << 20,
        description="The output cannot end before it has this many tokens.",
    )
    n: int | None = Field(
        default=None, ge=1, le=128, description="Number of completions of the prompt."
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Return the log-probability of each output token, and of this many of the "
        "most probable tokens at its place.",
    )
    prompt_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="The same as `logprobs`, for the tokens of the prompt.",
    )
    draft_tokens: int | None = Field(
        default=None,
        ge=0,
        le=16,
        description="Drafts per step, at most; 0: no speculation for this request.",
    )
    priority: int | None = Field(
        default=None,
        ge=-(1 << 31),
        le=1 << 31,
        description="Requests with a lower number run first.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=1 << 63,
        description="Seed of the random draws; completion number i uses seed + i. Not given: 0.",
    )
    stop: Annotated[tuple[StopString, ...], OneOrListed] = Field(
        default=(),
        max_length=16,
        description="Texts that end the output. The output does not include them.",
    )
    stop_token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Listed] = Field(
        default=(),
        max_length=MAX_STOP_TOKENS // 2,
        description="Ids of tokens that end the output.",
    )
    ignore_eos: bool = Field(
        default=False,
        description="Do not stop at the end-of-sequence "
        "token: generate until max_tokens or a stop string.",
    )
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="The grammar that the output must follow."
    )
