"""What a request may say, key by key: one rule for each, wherever it comes from.

`SamplingParams` defines the keys that say how tokens are drawn, each with its rule. A line of a
prompts file has the same keys beside its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)
from pydantic_core import PydanticKnownError

from .limits import MAX_BIASES, MAX_DRY_BREAKERS, MAX_NODE_SETTINGS, MAX_STOP_TOKENS

M = TypeVar("M", bound=BaseModel)

MAX_KEYS = 64
"""Most keys of one object of a request, where the object is not a mapping of the client's own."""


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
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a text or a list of texts, not {type(value).__name__}")
    return _listed(value)


def _ids_as_numbers(value: Any) -> Any:
    """JSON has token ids as texts, where they are keys."""
    if not isinstance(value, dict):
        return value
    return {
        int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key: bias
        for key, bias in value.items()
    }


def _no_more(most: int, value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) > most:
        context = {"field_type": "Mapping", "max_length": most, "actual_length": len(value)}
        raise PydanticKnownError("too_long", context)
    return value


def at_most(most: int) -> BeforeValidator:
    """Counts the entries of a mapping before any is looked at.

    `max_length` counts those that are right, and all that are wrong would be told of. Of a list
    `fail_fast` stops at the first.
    """
    return BeforeValidator(partial(_no_more, most))


WholeCharacters = AfterValidator(_whole_characters)
Choice = Annotated[str, Field(max_length=4096), WholeCharacters]
StopString = Annotated[str, Field(min_length=1, max_length=256), WholeCharacters]
Listed = BeforeValidator(_listed)
StopStrings = Annotated[
    tuple[StopString, ...],
    Field(max_length=16, fail_fast=True),
    BeforeValidator(_one_or_listed, json_schema_input_type=str | tuple[StopString, ...]),
]
BadWords = Annotated[tuple[StopString, ...], Field(max_length=128, fail_fast=True), Listed]
DryBreakers = Annotated[
    tuple[StopString, ...], Field(max_length=MAX_DRY_BREAKERS, fail_fast=True), Listed
]
StopTokens = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    Field(max_length=MAX_STOP_TOKENS // 2, fail_fast=True),
    Listed,
]
TokenIds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=1 << 20, fail_fast=True), Listed
]
Biases = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]],
    Field(max_length=MAX_BIASES),
    BeforeValidator(_ids_as_numbers),
    at_most(MAX_BIASES),
]

NodeSettings = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[float, Field(allow_inf_nan=False)]],
    Field(max_length=MAX_NODE_SETTINGS),
    at_most(MAX_NODE_SETTINGS),
]

AdapterName = Annotated[str, Field(min_length=1, max_length=256), WholeCharacters]


class Keys(BaseModel):
    """Base of what a request says: no other keys, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    NOT_SUPPORTED: ClassVar[Mapping[str, str]] = {}
    """Keys that other systems take and this one does not, with the reason and what to do."""


_BEAMS = (
    "beam search chooses among whole texts when they end, so no token before that is settled: "
    "nothing could be streamed, stopped, drafted for or held to a grammar. Ask for n completions "
    "with logprobs, and take the best"
)
NOT_SUPPORTED: Mapping[str, str] = dict.fromkeys(
    (
        "use_beam_search",
        "num_beams",
        "num_beam_groups",
        "beam_width",
        "diversity_penalty",
        "length_penalty",
        "early_stopping",
    ),
    _BEAMS,
)
"""Of requests."""


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
    choice: Annotated[tuple[Choice, ...], Field(fail_fast=True), Listed] | None = Field(
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

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, given: Any) -> Any:
        return _no_more(MAX_KEYS, given)

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


def key(default: Any, says: str, checked: Any = None, **rule: Any) -> Any:
    """A field of a dataclass that is a key of requests too.

    `says` is its description; `checked` the type that a value must have, where it is not the
    declared one; `rule` what pydantic's `Field` takes, such as `ge` and `max_length`.
    """
    return field(default=default, metadata={"checked": checked, "rule": rule, "says": says})


def with_keys_of(
    params: type, *, without: Collection[str] = (), says: Mapping[str, str] | None = None
) -> Callable[[type[M]], type[M]]:
    """Add every `key` of a dataclass to a model, in its order; None, or absent, is its default.

    `without`: the names of those that the model does not take. `says`: descriptions by name, where
    the model's defaults are others.
    """
    hints = get_type_hints(params)

    def add(model: type[M]) -> type[M]:
        made: Any = {}
        for each in fields(params):
            if not each.metadata or each.name in without:
                continue
            kind, rule = each.metadata["checked"] or hints[each.name], each.metadata["rule"]
            if kind is float:
                rule = {**rule, "allow_inf_nan": False}
            about = Field(description=(says or {}).get(each.name, each.metadata["says"]))
            made[each.name] = (Annotated[Annotated[kind, Field(**rule)] | None, about], None)
        name, module, doc = model.__name__, model.__module__, model.__doc__
        return create_model(name, __base__=model, __module__=module, __doc__=doc, **made)

    return add
