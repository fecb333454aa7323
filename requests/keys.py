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

    json_schema: Any = Field(default=None, alias="json", description="A JSON Schema.")
    json_object: bool | None = Field(default=None, description="Any JSON object.")
    regex: str | None = Field(default=None, max_length=65_536, description="A regular expression.")
    grammar: str | None = Field(
        default=None, max_length=262_144, description="EBNF whose first rule is `root`."
    )
    choice: Annotated[tuple[Choice, ...], Listed] | None = Field(
        default=None, max_length=4096, description="One of these texts."
    )
    structural_tag: dict[str, Any] | None = Field(
        default=None, description="Free text in which tags open structured parts."
    )
    reasoning: bool | None = Field(
        default=None,
        description="Whether a reasoning section comes first; as the pipeline says if not given.",
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

    max_tokens: int | None = Field(default=None, ge=1, le=1 << 20, description="128 if not given.")
    temperature: float | None = Field(
        default=None, ge=0, le=100, allow_inf_nan=False, description="0, greedy, if not given."
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Draw from the smallest set of tokens of this probability; 1: off.",
    )
    top_k: int | None = Field(default=None, ge=0, le=1 << 24, description="0: all tokens.")
    min_p: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="Least probability, as a share of the best token's.",
    )
    presence_penalty: float | None = Field(
        default=None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="For tokens that the output has.",
    )
    frequency_penalty: float | None = Field(
        default=None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description="For each time that the output has a token.",
    )
    repetition_penalty: float | None = Field(
        default=None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="For tokens of prompt and output; 1: off.",
    )
    logit_bias: (
        Annotated[
            dict[int, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]],
            BeforeValidator(_ids_as_numbers),
        ]
        | None
    ) = Field(default=None, max_length=MAX_BIASES, description="Added to the logits of token ids.")
    bad_words: Annotated[tuple[StopString, ...], Listed] = Field(
        default=(), max_length=128, description="Texts that the output must not contain."
    )
    min_tokens: int | None = Field(
        default=None, ge=0, le=1 << 20, description="No end before so many tokens."
    )
    n: int | None = Field(default=None, ge=1, le=128, description="Completions.")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Alternatives listed beside each output token.",
    )
    prompt_logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="The same for the tokens of the prompt."
    )
    draft_tokens: int | None = Field(
        default=None, ge=0, le=16, description="Drafts per step, at most; 0: no speculation."
    )
    priority: int | None = Field(
        default=None, ge=-(1 << 31), le=1 << 31, description="Lower runs first."
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=1 << 63,
        description="0 if not given; completion number i has seed + i.",
    )
    stop: Annotated[tuple[StopString, ...], OneOrListed] = Field(
        default=(), max_length=16, description="Texts that end the output, which stops before them."
    )
    stop_token_ids: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Listed] = Field(
        default=(), max_length=MAX_STOP_TOKENS // 2, description="Tokens that end the output."
    )
    ignore_eos: bool = Field(default=False, description="Go on to max_tokens.")
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="The grammar that the output must follow."
    )
