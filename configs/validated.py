"""Plain data through a pydantic model, with every complaint brought back to its line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..requests.complaints import complaint, without_tags
from .errors import ConfigError, Problem
from .names import not_a_name
from .yaml_source import Located, Location

Model = TypeVar("Model", bound=BaseModel)

MAX_ALIKE = 100  # problems listed of one mapping or list


def validated(model: type[Model], source: Located, within: Location = ()) -> Model:
    """The model built from `source`; numbers, text and truth values are not mixed up.

    `within`: the keys under which `source` stands, for messages. Goes through JSON so that
    pydantic is strict about scalars and not about list or tuple. Raises `ConfigError` listing all
    that is wrong.
    """
    try:
        text = json.dumps(source.plain(), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        said = "holds half of a surrogate pair, which is not text"
        raise ConfigError.at(source.at(()).mark, said) from error
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(*_problems(model, source, json.loads(text), error, within)) from error


def _problems(
    model: type[BaseModel], source: Located, data: Any, error: ValidationError, within: Location
) -> list[Problem]:
    """`data`: what was validated, in which all keys are texts."""
    found: list[Problem] = []
    seen: dict[Location, int] = {}
    details = _of_one_key(error.errors(include_url=False), data)
    for detail in details:
        location: Location = detail["loc"]
        if detail["type"] == "too_short" and any(_within(location, d["loc"]) for d in details):
            continue  # entries that are wrong were not counted; they are told of themselves
        seen[location[:-1]] = seen.get(location[:-1], 0) + 1
        if seen[location[:-1]] > MAX_ALIKE:
            continue
        part = source.at(location)
        wrong_key = detail["type"] == "extra_forbidden" or (location and location[-1] == "[key]")
        mark = (part.key or part.mark) if wrong_key else part.mark
        said = complaint(model, _in_words(detail), within=within)
        if words := detail.get("or") or _words_beside(model, location):
            said += f"; or {' or '.join(words)}"
        problem = Problem(mark, said)
        if problem not in found:
            found.append(problem)
    return sorted(found, key=lambda problem: (problem.mark.line or 0, problem.mark.column or 0))


def _in_words(detail: dict[str, Any]) -> dict[str, Any]:
    """A complaint of a name that says what is wrong with it, in place of the pattern it misses."""
    if detail["type"] != "string_pattern_mismatch":
        return detail
    wrong = not_a_name(detail["input"])
    return detail if wrong is None else {**detail, "type": "value_error", "ctx": {"error": wrong}}


def _words_beside(model: type[BaseModel], location: Location) -> list[str]:
    """Words that a key takes beside a number by what its schema says, not by its type."""
    key = str(location[0]) if len(location) == 1 else ""
    field = model.model_fields.get(key)
    if field is None or not callable(field.json_schema_extra):
        return []
    said: dict[str, Any] = {}
    field.json_schema_extra(said)
    return [repr(each["const"]) for each in said.get("anyOf", ()) if "const" in each]


def _of_one_key(details: Sequence[Any], data: Any) -> list[dict[str, Any]]:
    """A complaint for each key: where it takes a number or a word, pydantic has one for either.

    What each kind says is under the key, in a place of its own that no file has.
    """
    found: dict[Location, dict[str, Any]] = {}
    kept: list[dict[str, Any]] = []
    for detail in map(dict, details):
        *above, last = detail["loc"] or ((),)
        where: Location = tuple(above)
        tag = isinstance(last, str) and last != "[key]" and detail["type"] != "missing"
        if not tag or without_tags(detail["loc"], "", data) != where:
            kept.append(detail)
            continue
        first = found.get(where)
        if first is None:
            found[where] = {**detail, "loc": where, "or": []}
            kept.append(found[where])
        elif detail["type"] == "literal_error":
            first["or"].append(detail["ctx"]["expected"])
    return kept


def _within(outer: Location, inner: Location) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer
