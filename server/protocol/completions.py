"""POST /v1/completions: a prompt, or several, continued."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ...configs.contents import MAX_TEXT
from ...requests.limits import MAX_LOGPROBS
from .sampling import REFUSED, Generating

MAX_PROMPTS = 128
DEFAULT_TOKENS = 16

Prompt = str | tuple[int, ...]


def _prompts(given: Any) -> tuple[Prompt, ...]:
    """A text, a list of texts, token ids, or a list of lists of them, each as a prompt.

    By hand: a union of the four would collect an error for each token of each form.
    """
    if isinstance(given, str) or _are_ids(given):
        return (_prompt(given, ""),)
    if not isinstance(given, list):
        raise ValueError("must be a text, a list of texts, token ids, or a list of lists of them")
    if not 1 <= len(given) <= MAX_PROMPTS:
        raise ValueError(f"has {len(given)} prompts; from 1 to {MAX_PROMPTS} are served at once")
    return tuple(
        _prompt(each, f"prompt {number} of {len(given)} ")
        for number, each in enumerate(given, start=1)
    )


def _prompt(given: Any, which: str) -> Prompt:
    if isinstance(given, str):
        if len(given) > MAX_TEXT:
            raise ValueError(f"{which}is longer than {MAX_TEXT} characters")
        return given
    if not _are_ids(given):
        empty = ", not an empty list" if given == [] else ""
        raise ValueError(f"{which}must be a text or a list of token ids{empty}")
    return tuple(given)


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and set(map(type, given)) == {int}


_FORMS: Any = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        "minItems": 1,
        "maxItems": MAX_PROMPTS,
    },
]


class CompletionRequest(Generating):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        tuple[Prompt, ...], BeforeValidator(_prompts), WithJsonSchema({"anyOf": _FORMS})
    ] = Field(description="What to continue. Several prompts are answered in one object.")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Return the log-probability of each token, and of so many of the most "
        "probable ones at its place.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        le=1 << 20,
        description=f"Tokens generated at most. Not given: {DEFAULT_TOKENS}. With `echo` it may be "
        "0: the answer is the prompt.",
    )
    echo: bool | None = Field(
        default=None,
        description="Begin the text with the prompt; with `logprobs` that of each of its tokens "
        "too, null for the first. These are not streamed.",
    )
    REFUSED: ClassVar = {
        **REFUSED,
        "suffix": ("a prompt is continued at its end", ("",)),
    }

    @model_validator(mode="after")
    def _whole_echo(self) -> CompletionRequest:
        if self.echo and self.stream and self.logprobs is not None:
            raise ValueError("echo with logprobs is told in one answer: leave out stream")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0: without echo the answer has no text; give 1 or more")
        return self

    @property
    def only_prompts(self) -> bool:
        """Whether the answer is the prompts, and nothing that is generated."""
        return self.max_tokens == 0
