"""Requests as a file states them: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..requests.keys import NOT_SUPPORTED, Keys, Listed, TokenIds, with_keys_of
from ..requests.params import SamplingParams
from .contents import ImageSource, Text, UserContent
from .errors import ConfigError, Mark, Problem, reading
from .validated import validated
from .yaml_source import Located

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_LINES = 100_000
MAX_PROBLEMS = 100  # listed; a file that is wrong throughout is wrong in one way


class Message(Keys):
    """One turn of a conversation, put through the model's chat template."""

    role: Literal["system", "user", "assistant"]
    content: UserContent

    @model_validator(mode="after")
    def _only_users_show(self) -> Message:
        if self.role != "user" and not isinstance(self.content, str):
            raise ValueError("only messages of the user may have images")
        return self


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


@with_keys_of(SamplingParams)
class PromptLine(Keys):
    """One request. What it does not say is greedy decoding of up to 128 tokens."""

    NOT_SUPPORTED = NOT_SUPPORTED

    id: Annotated[
        str | None,
        BeforeValidator(_number_as_text, json_schema_input_type=str | int | None),
    ] = Field(
        default=None,
        max_length=256,
        description="Name of the request in the results. Not given: its place in the list, from 0.",
    )
    prompt: Text | None = Field(
        default=None,
        description="The prompt as text. Exactly one of `prompt`, `prompt_token_ids` and "
        "`messages` is given.",
    )
    prompt_token_ids: TokenIds | None = Field(
        default=None,
        min_length=1,
        description="The prompt as token ids of the model, as they stand: no template, and no "
        "token before them.",
    )
    messages: tuple[Message, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="A conversation, formatted by the model's chat template.",
    )
    images: Annotated[tuple[ImageSource, ...], Listed] = Field(
        default=(),
        max_length=1024,
        description="Images for the placeholders of a `prompt`, in order: paths of files, or "
        "`data:` URLs with base64. Those of `messages` stand in their contents.",
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> PromptLine:
        ways = ("prompt", "prompt_token_ids", "messages")
        given = [key for key in ways if getattr(self, key) is not None]
        if not given:
            raise ValueError("needs either prompt, prompt_token_ids or messages")
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(given)}: give one of them")
        if self.images and self.messages is not None:
            raise ValueError("the images of messages stand in their contents: leave out images")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """What it says of how tokens are drawn: arguments of `SamplingParams`."""
        said = self.model_fields_set - PROMPT
        return {key: value for key in said if (value := getattr(self, key)) is not None}


PROMPT = frozenset({"id", "prompt", "prompt_token_ids", "messages", "images"})


def prompt_of(given: str | Mapping[str, Any] | PromptLine, name: str = "prompt") -> PromptLine:
    """A request from Python: a text, or the keys of a line. Raises `ConfigError`."""
    if isinstance(given, PromptLine):
        return given
    data: Any = {"prompt": given} if isinstance(given, str) else dict(given)
    try:
        return validated(PromptLine, _Line(data, Mark(name)))
    except RecursionError:
        raise ConfigError.at(Mark(name), "is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ConfigError.at(Mark(name), f"is not plain data: {error}") from error


def read_prompts(path: Path) -> tuple[PromptLine, ...]:
    """Every request of a JSON Lines file; blank lines count for nothing.

    Raises a `ConfigError` that lists every broken line, so that one pass mends the file.
    """
    name = str(path)
    with reading(name), path.open("rb") as stream:
        raw = stream.read(MAX_FILE_BYTES + 1)
    return prompts_of(raw, name)


def prompts_of(raw: bytes, name: str) -> tuple[PromptLine, ...]:
    """The same of what was read already; `name` is that of the file. Raises `ConfigError`."""
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
