"""Plain data through a pydantic model, with every complaint brought back to its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ..graph.errors import did_you_mean
from .errors import ConfigError, Problem
from .yaml_source import Located, Location

Model = TypeVar("Model", bound=BaseModel)

# pydantic's error types in our words; `{…}` are fields of the error's context.
_SAYS: Mapping[str, str] = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_too_short": "must not be empty",
    "string_too_long": "is longer than {max_length} characters",
    "too_short": "needs at least {min_length} of them",
    "too_long": "has more than {max_length} entries",
}


def validated(model: type[Model], source: Located) -> Model:
    """The model built from `source`; numbers, text and truth values are not mixed up.

    Goes through JSON so that pydantic is strict about scalars and not about list or tuple.
    """
    try:
        text = json.dumps(source.plain(), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        said = "holds half of a surrogate pair, which is not text"
        raise ConfigError.at(source.at(()).mark, said) from error
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(*_problems(model, source, error)) from error


def _problems(model: type[BaseModel], source: Located, error: ValidationError) -> list[Problem]:
    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        location: Location = detail["loc"]
        part = source.at(location)
        wrong_key = detail["type"] == "extra_forbidden" or (location and location[-1] == "[key]")
        mark = (part.key or part.mark) if wrong_key else part.mark
        problem = Problem(mark, _message(model, location, dict(detail)))
        if problem not in found:
            found.append(problem)
    return sorted(found, key=lambda problem: (problem.mark.line or 0, problem.mark.column or 0))


def _message(model: type[BaseModel], location: Location, detail: Mapping[str, Any]) -> str:
    kind = detail["type"]
    context = {key: _rounded(value) for key, value in detail.get("ctx", {}).items()}
    name = _spell(location)
    if kind == "extra_forbidden":
        key = str(location[-1])
        return f"unknown key {key!r}{did_you_mean(key, _known_keys(model, location[:-1]))}"
    if kind == "missing":
        return f"{_spell(location[:-1]) or 'the file'} lacks the key {location[-1]!r}"
    if kind == "value_error":
        return f"{name}: {context['error']}" if name else str(context["error"])
    if kind == "json_invalid":
        return f"is not usable: {detail['msg'].removeprefix('Invalid JSON: ')}"
    given = detail.get("input")
    shown = f", not {_short(given)}" if isinstance(given, str | int | float | None) else ""
    if kind in ("literal_error", "enum"):
        expected = re.findall(r"'([^']*)'|(\d+)", context["expected"])
        names = [text or number for text, number in expected]
        near = did_you_mean(str(given), names)
        return f"{name} cannot be {_short(given)}{near}"
    says = _SAYS.get(kind)
    if kind == "string_pattern_mismatch":
        return f"{name}: {_short(given)} is not a name (no spaces, no '@')"
    if says is None:
        return f"{name}: {detail['msg']}{shown}"
    return f"{name} {says.format(**context)}{shown}"


def _rounded(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _spell(location: Location) -> str:
    """`nodes[2].device.cost_us`."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text.replace(".[key]", "")


def _short(given: object) -> str:
    text = json.dumps(given, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _known_keys(model: type[BaseModel], location: Location) -> set[str]:
    """The keys that the mapping at a location may have."""
    here = {model}
    for step in location:
        inner = {
            child
            for parent in here
            for name, info in parent.model_fields.items()
            if step in (name, info.alias)
            for child in _models_in(info.annotation)
        }
        here = inner or here  # an index, or a name in a mapping of models, stays where it is
    return {info.alias or name for each in here for name, info in each.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
