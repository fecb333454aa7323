"""Requests as a file states them: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .errors import ConfigError, Mark, Problem
from .validated import validated
from .yaml_source import Located

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_LINES = 100_000
MAX_TEXT = 4 * 1024 * 1024
MAX_PROBLEMS = 100  # listed; a file that is wrong throughout is wrong in one way

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Choice = Annotated[str, Field(max_length=4096)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Message(_Part):
    """One turn of a conversation, put through the model's chat template."""

    role: Literal["system", "user", "assistant"]
    content: Text


class StructuredOutputs(_Part):
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
    choice: tuple[Choice, ...] | None = Field(
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


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _one_as_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if type(value) is list else value


class PromptLine(_Part):
    """One request. What it does not say is greedy decoding of up to 128 tokens."""

    id: Annotated[
        str | None,
        BeforeValidator(_number_as_text, json_schema_input_type=str | int | None),
    ] = Field(default=None, max_length=256, description="Its place in the list if not given.")
    prompt: Text | None = Field(default=None, description="A text; or `messages`.")
    messages: tuple[Message, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Turns, put through the model's chat template.",
    )
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
        default=None, ge=0, lt=1, description="Least probability, as a share of the best token's."
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="For tokens that the output has."
    )
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="For each time that the output has a token."
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=100, description="For tokens of prompt and output; 1: off."
    )
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=512, description="Added to the logits of token ids."
    )
    bad_words: tuple[StopString, ...] = Field(
        default=(), max_length=128, description="Texts that the output must not contain."
    )
    min_tokens: int | None = Field(
        default=None, ge=0, le=1 << 20, description="No end before so many tokens."
    )
    n: int | None = Field(default=None, ge=1, le=128, description="Completions.")
    logprobs: int | None = Field(
        default=None, ge=0, le=32, description="Alternatives listed beside each output token."
    )
    prompt_logprobs: int | None = Field(
        default=None, ge=0, le=32, description="The same for the tokens of the prompt."
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
    stop: Annotated[
        tuple[StopString, ...],
        BeforeValidator(_one_as_many, json_schema_input_type=str | tuple[StopString, ...]),
    ] = Field(
        default=(), max_length=16, description="Texts that end the output, which stops before them."
    )
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), max_length=32, description="Tokens that end the output."
    )
    ignore_eos: bool = Field(default=False, description="Go on to max_tokens.")
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="The grammar that the output must follow."
    )

    @model_validator(mode="after")
    def _prompt_or_messages(self) -> PromptLine:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either prompt or messages")
        return self


def prompt_of(given: str | Mapping[str, Any] | PromptLine, name: str = "prompt") -> PromptLine:
    """A request from Python: a text, or the keys of a line. Raises `ConfigError`."""
    if isinstance(given, PromptLine):
        return given
    data: Any = {"prompt": given} if isinstance(given, str) else dict(given)
    try:
        return validated(PromptLine, _Line(data, Mark(name)))
    except (TypeError, ValueError) as error:
        raise ConfigError.at(Mark(name), f"is not plain data: {error}") from error


def read_prompts(path: Path) -> tuple[PromptLine, ...]:
    """Every request of a JSON Lines file; blank lines count for nothing.

    Raises a `ConfigError` that lists every broken line, so that one pass mends the file.
    """
    name = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError.at(Mark(name), f"cannot be read: {reason}") from error
    lines = raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(raw) > MAX_FILE_BYTES or len(lines) > MAX_LINES:
        raise ConfigError.at(
            Mark(name), f"holds more than {MAX_LINES} lines or {MAX_FILE_BYTES >> 20} MiB"
        )
    found: list[PromptLine] = []
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _read_line(line, name, number)
        except ConfigError as error:
            problems += error.problems
            continue
        if prompt.id is not None and first.setdefault(prompt.id, number) != number:
            said = f"id {prompt.id!r} is that of line {first[prompt.id]} already"
            problems.append(Problem(Mark(name, number), said))
        found.append(prompt)
    if problems:
        raise ConfigError(*problems[:MAX_PROBLEMS])
    if not found:
        raise ConfigError.at(Mark(name, 1), "holds no prompts")
    return tuple(found)


def _read_line(line: bytes, file: str, number: int) -> PromptLine:
    mark = Mark(file, number)
    try:
        data = json.loads(
            line.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise ConfigError.at(mark, "is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ConfigError.at(
            Mark(file, number, error.colno), f"is not JSON: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        said = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        raise ConfigError.at(mark, f"is not usable JSON: {said}") from error
    if not isinstance(data, dict):
        raise ConfigError.at(mark, 'must be an object, as in {"prompt": "…"}')
    return validated(PromptLine, _Line(data, mark))


class _Line(Located):
    """JSON data, all of it on one line."""

    def plain(self) -> Any:
        return self.value

    def at(self, location: tuple[str | int, ...]) -> Located:
        return self


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")
