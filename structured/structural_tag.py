"""Structural tags: free text in which marked sections follow grammars of their own.

The published form is XGrammar's, {"type": "structural_tag", "format": …}. OpenAI-compatible servers
also take an older one, {"structures": [{"begin", "schema", "end"}], "triggers": […]}, which is
rewritten into it. This file reads and checks; the libraries say what they can do with the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from ..graph.errors import nearest
from .source import GrammarError, dump_json, load_json, nesting_error

MAX_TAGS: Final = 1024
"""Most tags of one grammar, wherever they stand."""

_TAG: Final = re.compile(r"/tags/\d+$")
_TAGS: Final = ("tags", "at_least_one", "stop_after_first")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "const_string": ("value",),
    "json_schema": ("json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"),
    "qwen_xml_parameter": ("json_schema",),
    "any_text": ("excludes", "max_tokens", "max_chars"),
    "token": ("token",),
    "exclude_token": ("exclude_tokens",),
    "any_tokens": ("exclude_tokens", "max_tokens"),
    "grammar": ("grammar",),
    "regex": ("pattern",),
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "excludes", *_TAGS),
    "token_triggered_tags": ("trigger_tokens", "exclude_tokens", *_TAGS),
    "tags_with_separator": ("separator", *_TAGS),
    "optional": ("content",),
    "plus": ("content",),
    "star": ("content",),
    "repeat": ("min", "max", "content"),
    "dispatch": ("rules", "loop", "excludes"),
    "token_dispatch": ("rules", "loop", "exclude_tokens"),
}
"""By type of a format the keys beside it."""


def normalise(text: str) -> str:
    """The published form of either form, as compact JSON text.

    Raises:
        GrammarError: neither form, nested too deep, or too many tags.
    """
    given = load_json(text, "structural_tag")
    if not isinstance(given, dict):
        raise _error(f"an object is needed, not {type(given).__name__}")
    if "structures" in given or "triggers" in given:
        given = _from_older(given)
    if given.get("type", "structural_tag") != "structural_tag":
        raise _error(f"'type' is {given['type']!r}, not 'structural_tag'")
    if not isinstance(given.get("format"), dict):
        raise _error("'format' is missing, or no object")
    nesting_error(given, "structural_tag")
    for place, format_ in formats(given):
        _check_keys(place, format_)
    tags = sum(format_.get("type") == "tag" for _, format_ in formats(given))
    if tags > MAX_TAGS:
        raise _error(f"{tags} tags, more than {MAX_TAGS}")
    return dump_json({"type": "structural_tag", "format": given["format"]})


def _check_keys(place: str, format_: Mapping[str, object]) -> None:
    """Raise `GrammarError` for what a library would ignore in a format, or take for another."""
    kind = format_.get("type", "tag" if _TAG.search(place) else None)
    known = ("type", *_KEYS.get(str(kind), format_))
    for key in format_:
        if key not in known:
            near = nearest(key, known)
            guess = f" (did you mean {near!r}?)" if near else ""
            raise _error(f"{place}: unknown key {key!r} of the format {kind!r}{guess}")
    for key in ("pattern", "grammar"):
        if not isinstance(given := format_.get(key, ""), str):
            raise _error(f"{place}/{key}: a string is needed, not {type(given).__name__}")


def formats(tag: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Every format with its place, from the outside in; schemas are not looked into."""
    rest: list[tuple[str, object]] = [("#/format", tag.get("format"))]
    while rest:
        place, value = rest.pop()
        if isinstance(value, list):
            rest.extend((f"{place}/{index}", each) for index, each in enumerate(value))
        elif isinstance(value, dict):
            yield place, value
            for key in ("content", "elements", "tags", "rules"):
                if key in value:
                    rest.append((f"{place}/{key}", value[key]))


def _from_older(given: dict[str, object]) -> dict[str, object]:
    structures, triggers = given.get("structures"), given.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise _error("'structures' and 'triggers' must both be lists")
    if unknown := set(given) - {"type", "structures", "triggers"}:
        raise _error(f"unknown key {min(unknown)!r} beside 'structures'")
    tags = []
    for index, each in enumerate(structures):
        if not isinstance(each, dict) or not isinstance(each.get("begin"), str):
            raise _error(f"structures/{index}: 'begin', 'schema' and 'end' are needed")
        schema = each.get("schema", {})
        tags.append(
            {
                "type": "tag",
                "begin": each["begin"],
                "content": {
                    "type": "json_schema",
                    "json_schema": load_json(schema, "structural_tag")
                    if isinstance(schema, str)
                    else schema,
                },
                "end": each.get("end", ""),
            }
        )
    return {"format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def _error(what: str) -> GrammarError:
    return GrammarError(f"structural_tag: {what}")
