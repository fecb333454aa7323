"""What a request may ask for, and how it is refused."""

from __future__ import annotations

import json

import pytest

from stepweave.structured.grammar import (
    MAX_CHOICES,
    MAX_DEPTH,
    MAX_SOURCE_BYTES,
    GrammarError,
    GrammarSpec,
    bracket_depth,
    json_depth,
)


def test_each_kind_of_request_becomes_its_spec() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert GrammarSpec.from_request({"json": schema}) == GrammarSpec(
        "json", '{"type":"object","properties":{"b":{},"a":{}}}'
    ), "the order of properties is the order of the output"
    assert GrammarSpec.from_request({"json": '{"type": "null"}'}).source == '{"type": "null"}'
    assert GrammarSpec.from_request({"json_object": True}) == GrammarSpec("json_object", "")
    assert GrammarSpec.from_request({"regex": "a+"}) == GrammarSpec("regex", "a+")
    assert GrammarSpec.from_request({"grammar": 'root ::= "a"'}).kind == "grammar"
    assert GrammarSpec.from_request({"choice": ["b", "a", "b"]}).choices == ("b", "a")


def test_a_key_that_is_none_counts_as_absent() -> None:
    assert GrammarSpec.from_request({"regex": "a", "json": None, "choise": None}).kind == "regex"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "exactly one of .* got none"),
        ({"regex": "a", "choice": ["a"]}, "exactly one of .* got choice and regex"),
        ({"regexp": "a"}, "did you mean 'regex'"),
        ({"guided_json": {}}, "did you mean 'json'"),
        ({"ebnf": ""}, "did you mean 'grammar'"),
        ({"regex": 3}, "needs a string, got int"),
        ({"grammar": " \n"}, "the source is empty"),
        ({"json_object": False}, "write true or leave it out"),
        ({"json": "nonsense"}, "json: not JSON"),
        ({"json": '{"minimum": NaN}'}, "NaN is not JSON"),
        ({"json": '{"minimum": 1e400}'}, "1e400 is larger than any number"),
        ({"json": [1]}, "an object or a boolean, not list"),
        ({"json": {"enum": {1, 2}}}, "not expressible as JSON"),
        ({"json": {"minimum": float("inf")}}, "not expressible as JSON"),
        ({"choice": []}, "the list is empty"),
        ({"choice": "yes"}, "needs a list of strings, got str"),
        ({"choice": ["a", 1]}, "every alternative must be a string"),
        ({"regex": "\ud800"}, "not valid Unicode"),
        ({"choice": ["a", "\ud800"]}, r"choice: '\\ud800' is not valid Unicode"),
    ],
)
def test_a_wrong_request_is_refused_with_what_to_do(
    request_: dict[str, object], message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        GrammarSpec.from_request(request_)


def test_limits_hold_at_their_value_and_not_above() -> None:
    def nested(levels: int) -> object:
        value: object = {}
        for _ in range(levels - 1):
            value = {"items": value}
        return value

    GrammarSpec.from_request({"json": nested(MAX_DEPTH)})
    with pytest.raises(GrammarError, match=f"nested {MAX_DEPTH + 1} deep"):
        GrammarSpec.from_request({"json": nested(MAX_DEPTH + 1)})

    GrammarSpec("regex", "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH)
    with pytest.raises(GrammarError, match=f"nested {MAX_DEPTH + 1} deep"):
        GrammarSpec("regex", "(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1))

    GrammarSpec("regex", "a" * MAX_SOURCE_BYTES)
    with pytest.raises(GrammarError, match="bytes, more than"):
        GrammarSpec("regex", "ä" * (MAX_SOURCE_BYTES // 2 + 1))

    GrammarSpec("choice", json.dumps([str(i) for i in range(MAX_CHOICES)]))
    with pytest.raises(GrammarError, match="alternatives, more than"):
        GrammarSpec("choice", json.dumps([str(i) for i in range(MAX_CHOICES + 1)]))


@pytest.mark.parametrize("source", ["[" * 100_000, '{"a":' * 100_000])
def test_nesting_that_breaks_a_recursive_reader_is_an_ordinary_refusal(source: str) -> None:
    with pytest.raises(GrammarError):
        GrammarSpec("json", source)


def test_a_schema_that_contains_itself_is_an_ordinary_refusal() -> None:
    schema: dict[str, object] = {}
    schema["items"] = schema
    with pytest.raises(GrammarError, match="not expressible"):
        GrammarSpec.from_request({"json": schema})


@pytest.mark.parametrize(
    ("source", "ebnf", "depth"),
    [
        ("a(b(c)d)(e)", False, 2),
        (r"\(\(\(", False, 0),
        ("[(((]", False, 0),
        (r"[\](](a)", False, 1),
        ('root ::= "(((" (a)', True, 1),
        ('"\\"(" (a (b))', True, 2),
        ('"(("', False, 2),
        (")))((", False, 2),
        ("\\", False, 0),
    ],
)
def test_only_brackets_that_group_count_as_nesting(source: str, ebnf: bool, depth: int) -> None:
    assert bracket_depth(source, ebnf=ebnf) == depth


def test_json_depth_counts_lists_and_objects() -> None:
    values: list[object] = [1, [], {"a": 1}, {"a": [1, {"b": []}]}]
    assert [json_depth(value) for value in values] == [0, 1, 1, 4]
