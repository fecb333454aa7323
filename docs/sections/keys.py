"""yaml.md: the keys of a config, from the JSON Schema that editors get too."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from sections.markdown import first_sentence, table

from stepweave.clusters.file import ClusterConfig
from stepweave.configs.schema import json_schema

SECTIONS = ("model", "scheduler", "policies", "nodes")  # have a table of their own


@cache
def schema() -> Mapping[str, Any]:
    """The definitions of the JSON Schemas of configs and of cluster files, by model."""
    cluster = ClusterConfig.model_json_schema()
    return {**json_schema()["$defs"], **cluster["$defs"], "ClusterConfig": cluster}


def keys(model: str, only: Collection[str] | None = None) -> str:
    """Keys of a model of the schema: what each may be, its default, its meaning. `only`: some."""
    definition = schema()[model]
    rows = [
        (
            f"`{key}`",
            kind_of(said).removesuffix(" or `null`"),  # the default says so
            default_of(said, key in definition.get("required", ())),
            meaning_of(said),
        )
        for key, said in definition["properties"].items()
        if only is None or key in only
    ]
    return table(("key", "what", "default", "meaning"), rows)


def meaning_of(said: Mapping[str, Any]) -> str:
    text = said.get("description")
    if text is None:  # a part with a class of its own, which says what it is
        parts = [part for part in said.get("anyOf", [said]) if "$ref" in part]
        text = first_sentence(schema()[_named(parts[0])]["description"])
    return text.replace(" - ", " − ").replace("<", "\\<")


def _named(part: Mapping[str, Any]) -> str:
    return str(part["$ref"]).rpartition("/")[2]


def default_of(said: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = said.get("default")
    if "default" not in said or isinstance(default, dict):
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def kind_of(said: Mapping[str, Any]) -> str:
    """What may stand there, in words."""
    if choices := said.get("anyOf", said.get("oneOf")):
        return " or ".join(dict.fromkeys(kind_of(part) for part in choices))
    if "$ref" in said:
        return "mapping"
    if "const" in said:
        const = said["const"]
        return f"`{const if isinstance(const, str) else json.dumps(const)}`"
    if "enum" in said:
        return " or ".join(f"`{each}`" for each in said["enum"])
    what = said.get("type")
    if what == "array" and "prefixItems" not in said:
        return f"list of {_many(kind_of(said['items']))}"
    if what == "object" and "additionalProperties" in said and "properties" in said:
        return "mapping"
    if what == "object" and "patternProperties" in said:
        return f"{kind_of(*said['patternProperties'].values())} by name"
    named = {
        "string": "text",
        "object": "mapping",
        "boolean": "`true` or `false`",
        "null": "`null`",
    }
    return named.get(str(what), str(what or "anything")) + _bounds(said)


def _many(what: str) -> str:
    return {"text": "texts", "mapping": "mappings", "integer": "integers"}.get(what, what)


def _bounds(said: Mapping[str, Any]) -> str:
    """Where a number may lie; limits that only keep out typing errors are not worth the room."""
    low = said.get("minimum", said.get("exclusiveMinimum"))
    high = said.get("maximum", said.get("exclusiveMaximum"))
    more = "above " if "exclusiveMinimum" in said else ""
    less = "below " if "exclusiveMaximum" in said else ""
    if low is None or abs(low) > 1e9:
        return ""
    low, high = _number(low), _number(high) if high is not None and high < 1e9 else None
    if high is None:
        return f" above {low}" if more else f" from {low}"
    return f", {more}{low} to {less}{high}"


def _number(value: float) -> str:
    return f"{value:g}" if value < 1e5 else f"{int(value):,}"
