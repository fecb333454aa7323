"""Structural tags: free text in which marked sections follow grammars of their own.

The published form is XGrammar's, {"type": "structural_tag", "format": …}. OpenAI-compatible servers
also take an older one, {"structures": [{"begin", "schema", "end"}], "triggers": […]}, which is
rewritten into it. This file reads and checks; the libraries say what they can do with the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from .source import GrammarError, dump_json, load_json, nesting_error

MAX_TAGS: Final = 1024
"""Most tags of one grammar, wherever they stand."""


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
    tags = sum(format_.get("type") == "tag" for _, format_ in formats(given))
    if tags > MAX_TAGS:
        raise _error(f"{tags} tags, more than {MAX_TAGS}")
    return dump_json({"type": "structural_tag", "format": given["format"]})


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
