"""What pydantic finds wrong, in our words: one sentence that names the key and says the rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from ..graph.errors import did_you_mean

Location = tuple[str | int, ...]

MOST_SHOWN = 60
"""Characters of what was given that a complaint repeats: a key may have millions."""

# pydantic's error types in our words; `{…}` are fields of the error's context.
_SAYS: Mapping[str, str] = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of a usual size",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_unicode": "must not hold half of a surrogate pair, which is not text",
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


def complaint(
    model: type[BaseModel],
    detail: Mapping[str, Any],
    whole: str = "the file",
    within: Location = (),
) -> str:
    """One entry of `ValidationError.errors()` as a sentence.

    `whole`: what lacks a key. `within`: the keys under which the model stands in the whole.
    """
    kind, location = detail["type"], (*within, *detail["loc"])
    context = {key: _rounded(value) for key, value in detail.get("ctx", {}).items()}
    name = _spell(location)
    if kind == "extra_forbidden":
        key = cut(str(location[-1]))
        if reason := getattr(model, "NOT_SUPPORTED", {}).get(key):
            return f"{key} is not supported: {reason}"
        where = f"{_spell(location[:-1])}: " if len(location) > 1 else ""
        known = known_keys(model, detail["loc"][:-1])
        if key in known:  # of another member of the union that stands there
            return f"{where}the key {key!r} belongs to another type"
        return f"{where}unknown key {key!r}{did_you_mean(key, known)}"
    if kind == "missing":
        return f"{_spell(location[:-1]) or whole} lacks the key {location[-1]!r}"
    if kind == "union_tag_not_found":
        return f"{name or whole} lacks the key {context['discriminator']}"
    if kind == "union_tag_invalid":
        names = re.findall(r"'([^']*)'", str(context["expected_tags"]))
        by = str(context["discriminator"])  # a key, or a function of ours, which looks at `type`
        where = _spell((*location, "type" if by.endswith("()") else by.strip("'")))
        return f"{where} cannot be {shown(context['tag'])}{did_you_mean(context['tag'], names)}"
    if kind == "value_error":
        return f"{name}: {context['error']}" if name else str(context["error"])
    if kind == "json_invalid":
        return f"is not usable: {detail['msg'].removeprefix('Invalid JSON: ')}"
    given = detail.get("input")
    if kind in ("literal_error", "enum"):
        expected = re.findall(r"'([^']*)'|(\d+)", str(context["expected"]))
        if isinstance(given, str) and given in [number for _, number in expected]:
            return f"{name} must be the number {given}, not {shown(given)}"
        names = [text or number for text, number in expected]
        return f"{name} cannot be {shown(given)}{did_you_mean(str(given), names)}"
    says = _SAYS.get(kind)
    if kind == "string_pattern_mismatch":
        return f"{name}: {shown(given)} is not a name of the form {context['pattern']}"
    said = f", not {shown(given)}" if not isinstance(given, list | tuple | Mapping) else ""
    if says is None:
        return f"{name}: {detail['msg']}{said}"
    return f"{name} {says.format(**context)}{said}"


def without_tags(location: Location, kind: str, data: Any) -> Location:
    """The place in `data` of an error of that kind: pydantic's has the tags of unions too."""
    found: list[str | int] = []
    for index, step in enumerate(location):
        if isinstance(data, dict) and step in data:
            data = data[str(step)]
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        elif kind != "missing" or index < len(location) - 1:
            continue
        found.append(step)
    return tuple(found)


def shown(given: object) -> str:
    """A value, or what kind of thing it is, in a few words."""
    if isinstance(given, str | int | float | None):
        try:
            text = json.dumps(given, ensure_ascii=not str(given).isprintable())
        except ValueError:  # a number of thousands of digits
            return "so long a number"
    else:
        text = f"a value of type {type(given).__name__}"
    return cut(text)


def cut(text: str) -> str:
    """As much of a text as a complaint repeats."""
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "…"


def known_keys(model: type[BaseModel], location: Location) -> set[str]:
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


def _rounded(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _spell(location: Location) -> str:
    """`nodes[2].device.cost_us`."""
    text = ""
    for step in location:
        step = cut(step) if isinstance(step, str) else step
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text.replace(".[key]", "")
