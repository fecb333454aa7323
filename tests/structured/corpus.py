"""Schemas and patterns in the style of real ones, for random walks; written for this purpose."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from stepweave.structured.formats import format_names

PATTERNS: Final = [
    *(
        "^[a-z]+$",
        "^[A-Z][a-z]*$",
        "^[a-zA-Z0-9_-]+$",
        "^[^,]+$",
        "^.*$",
        "^.+$",
        "^$",
        "a",
        "^a",
        "a$",
    ),
    *(
        "^v[0-9](-[a-z]{2,4})?$",
        "^(x[0-9]{2,3})?y$",
        "^(a{2,3})*b$",
        "^(ab{1,2})+$",
        "^(a|b{2,})?c$",
    ),
    *(
        "^[0-9]{4}-[0-9]{2}$",
        r"^\d+\.\d+\.\d+$",
        r"^\d{1,3}(,\d{3})*$",
        r"^\$?[0-9]+(\.[0-9]{2})?$",
    ),
    *(
        r"^#([0-9a-f]{3}|[0-9a-f]{6})$",
        "^(#[0-9A-F]{6})?$",
        r"^\+?[0-9 ]{4,9}$",
        r"^[^\s]+$",
        r"^\S+$",
    ),
    *(
        "^(get|put|post)$",
        "^get|put$",
        "^(get|put$)",
        "(^get|put)$",
        "^a|b$|c",
        "(^|,)x(,|$)",
        "^(^a)$",
    ),
    *("^a.{1,20}z$", "^.{0,3}$", "^[^,]{1,8}$", "^.{1,200}$", "^[^,]{1,200}$", "^[a-z]{130}$"),
    *(r"^\/api\/[a-z]+$", r"^https?:\/\/", r"^[\w.+-]+@[\w-]+\.[a-z]{2,}$", r"^[\w-]+(\.[\w-]+)*$"),
    *(r"^arn:aws:[a-z]+:[a-z0-9-]*:[0-9]{12}:.+$", r"^projects\/[^/]+$", "^[A-Z]{2}(-[A-Z]{2})?$"),
    *(
        r"^\[[a-z]\]$",
        r"^\(.\)$",
        r"^\{[a-z]+\}$",
        r"^[\]a]$",
        r"^[a\-z]$",
        "^[-az]$",
        "^[a^]$",
        r"^\^$",
    ),
    *(
        r"^\u0041$",
        r"^\x41$",
        r"^é+$",
        r"^[à-ü]$",
        "^😀$",
        r"^[^\u0000-\u007f]$",
        r"^\t$",
        '^"$',
    ),
    *(
        r"^\\$",
        r"^[^\"\\]*$",
        r"^[\s\S]$",
        r"^\D\W$",
        r"^(?:ab)?c$",
        r"^(?P<year>[0-9]{4})$",
        "^a*?b+?$",
    ),
    *(
        "^(a?b?c?){2}$",
        "^((a|b)?c)*$",
        "^(a*)*b$",
        "^(a+)+$",
        "^(|a)$",
        "^(a||b)$",
        "^()$",
        "^x{0}y$",
    ),
    *("^a{2}$", "^a{2,}$", "^(ab){2,3}$", "^[a-c]{0,2}[0-9]?$", "^([01]?[0-9]|2[0-3]):[0-5][0-9]$"),
    *(
        "^(?!a)b$",
        "^(?=a)a$",
        r"^a\b$",
        r"^(a)\1$",
        r"^\p{L}$",
        "^[]a]$",
        r"^\Aa$",
        "^a{,2}$",
        "^*a",
        "^(a",
        "^[a",
    ),
]

_NUMBERS: Final[list[dict[str, Any]]] = [
    {},
    {"minimum": 0},
    {"minimum": -3, "maximum": 12},
    {"exclusiveMinimum": 0, "maximum": 100},
    {"minimum": 0, "exclusiveMinimum": True},
    {"minimum": 1.5, "maximum": 2.5},
    {"multipleOf": 5},
    {"multipleOf": 0.5},
    {"multipleOf": 0.01, "minimum": 0},
    {"multipleOf": 3, "minimum": 1, "maximum": 20},
    {"multipleOf": 2000},
    {"multipleOf": 123457},
    {"maximum": -1},
    {"minimum": 65535, "maximum": 70000},
    {"not": {"const": 3}},
]
_STRINGS: Final[list[dict[str, Any]]] = [
    {},
    {"minLength": 1},
    {"maxLength": 3},
    {"minLength": 2, "maxLength": 4},
    {"maxLength": 200},
    {"pattern": "^[a-z]+$", "maxLength": 5},
    {"pattern": "^[a-z]*(,[a-z]*)*$", "minLength": 3},
    {"pattern": "^[a-f]", "minLength": 2, "maxLength": 4},
    {"pattern": "^a", "format": "date"},
    {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
    {"enum": ["a", "bb", "ccc", 1, None], "maxLength": 2},
    {"enum": ["one", "two", "three"], "pattern": "^t"},
    {"not": {"enum": ["a", "ab", "b"]}},
    {"not": {"const": ""}, "maxLength": 2},
    {"const": 'x"y\\z\n'},
]
_ITEMS: Final[list[dict[str, Any]]] = [
    {},
    {"items": {"type": "integer"}},
    {"items": {"type": "string", "maxLength": 2}, "minItems": 1, "maxItems": 3},
    {"prefixItems": [{"type": "integer"}, {"type": "string"}]},
    {"prefixItems": [{"type": "integer"}], "items": False},
    {"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 3},
    {"items": [{"type": "integer"}, {"type": "null"}], "additionalItems": False},
    {"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
    {"items": {"type": "string"}, "uniqueItems": True},
    {"items": {"type": "string"}, "uniqueItems": False},
    {"items": {"type": "string"}, "contains": {"const": "a"}},
    {"maxItems": 0},
    {"not": {"maxItems": 1}, "items": {"type": "boolean"}},
    {"allOf": [{"items": {"minimum": 2}}, {"items": {"type": "integer", "maximum": 9}}]},
]
_A: Final = {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}}
_OBJECTS: Final[list[dict[str, Any]]] = [
    {"properties": _A},
    {"properties": _A, "required": ["b"]},
    {"properties": _A, "required": ["c", "z"]},
    {"properties": _A, "additionalProperties": False},
    {"properties": _A, "additionalProperties": {"type": "null"}},
    {"properties": _A, "additionalProperties": True, "required": ["a"]},
    {"properties": {"a": False, "b": {}}},
    {"properties": _A, "minProperties": 1, "additionalProperties": False},
    {"properties": _A, "maxProperties": 1, "additionalProperties": False},
    {"minProperties": 1, "additionalProperties": {"type": "integer"}},
    {"minProperties": 2},
    {"maxProperties": 2, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "integer"}},
    {"propertyNames": {"pattern": "^[a-b]$"}, "properties": _A},
    {"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
    {"patternProperties": {"^x-": {}}, "properties": _A, "additionalProperties": False},
    {"patternProperties": {"^a": {"maximum": 3}}, "properties": _A, "additionalProperties": False},
    {"patternProperties": {"^[a-c]$": {"type": "string"}, "^[d-f]$": {"type": "integer"}}},
    {"properties": _A, "dependencies": {"a": ["b"]}},
    {"properties": _A, "dependencies": {}},
    {"properties": _A, "dependentRequired": {"a": ["b"], "b": ["a"]}},
    {"properties": _A, "dependencies": {"a": {"properties": {"b": {"const": "x"}}}}},
    {"properties": _A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"properties": _A, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"properties": _A, "not": {"required": ["a", "b"]}},
    {"properties": _A, "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
    {"properties": _A, "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": False},
    {"properties": _A, "if": {"required": ["a"]}},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 3}}}]},
    {
        "oneOf": [
            {"properties": {"k": {"const": "x"}, "v": {"type": "integer"}}, "required": ["k"]},
            {"properties": {"k": {"const": "y"}, "v": {"type": "string"}}, "required": ["k"]},
        ]
    },
    {
        "oneOf": [
            {"properties": {"a": {}}, "additionalProperties": False, "required": ["a"]},
            {"properties": {"a": {}, "b": {}}, "additionalProperties": False, "required": ["a"]},
        ]
    },
]

_WHOLE: Final[list[dict[str, Any]]] = [
    {"type": ["string", "null"], "maxLength": 3},
    {"type": "string", "anyOf": [{"minLength": 2}, {"const": "a"}]},
    {"type": "integer", "oneOf": [{"minimum": 5}, {"maximum": 2}]},
    {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "maximum": 3}]},
    {"anyOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]},
    {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 9}]},
    {"not": {"type": ["object", "array", "number"]}},
    {"not": {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]}},
    {"type": ["integer", "string"], "enum": [1, "1", True, None, 2.5]},
    {"$ref": "#/definitions/n", "maximum": 9, "definitions": {"n": {"type": "integer"}}},
    {
        "properties": {"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/t~0u%20v"}},
        "type": "object",
        "required": ["x", "y"],
        "additionalProperties": False,
        "$defs": {"a/b": {"type": "integer"}, "t~u v": {"type": "null"}},
    },
    {
        "type": "object",
        "properties": {"x": {"$ref": "#/properties/y/anyOf/1"}, "y": {"anyOf": [{}, {"const": 1}]}},
        "required": ["x"],
        "additionalProperties": False,
    },
    {
        "$id": "https://example.com/tree.json",
        "type": "object",
        "properties": {
            "value": {"type": "integer"},
            "next": {"$ref": "https://example.com/tree.json#"},
            "name": {"$ref": "#word"},
        },
        "additionalProperties": False,
        "$defs": {"word": {"$anchor": "word", "type": "string", "maxLength": 2}},
    },
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"enum": [0, 1]}]},
]


def _typed() -> list[dict[str, Any]]:
    """Each group of keywords with its type, and without any."""
    groups = (
        ("integer", _NUMBERS),
        ("number", _NUMBERS),
        ("string", _STRINGS),
        ("array", _ITEMS),
        ("object", _OBJECTS),
    )
    return [{"type": name, **each} for name, group in groups for each in group]


def _with_patterns() -> list[dict[str, Any]]:
    whole = {"type": "object", "additionalProperties": False}
    return list(
        chain.from_iterable(
            (
                {"type": "string", "pattern": pattern},
                {**whole, "patternProperties": {pattern: {"type": "integer"}}, "minProperties": 0},
                {
                    "type": "object",
                    "propertyNames": {"pattern": pattern},
                    "additionalProperties": {"type": "null"},
                },
            )
            for pattern in PATTERNS
        )
    )


SCHEMAS: Final[list[dict[str, Any]]] = [
    *_WHOLE,
    *_typed(),
    *({"type": "string", "format": name} for name in (*format_names(), "password", "int32")),
    *_with_patterns(),
]
"""Some of them are refused, by one library or by both."""
