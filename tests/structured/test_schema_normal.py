"""The normal form of a schema allows exactly what the schema allows; `jsonschema` says what."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import jsonschema
import pytest

from stepweave.structured import reading, schema_normal
from stepweave.structured.grammar import MAX_SOURCE_BYTES, GrammarSpec
from stepweave.structured.json_schema import rewrite_schema
from stepweave.structured.reading import read
from stepweave.structured.schema_document import Document
from stepweave.structured.schema_normal import MAX_BRANCHES, MAX_NEEDED, Normaliser
from stepweave.structured.source import GrammarError, json_depth

from .corpus import SCHEMAS
from .test_walks import judge

TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 4, 6, -1, 1.5, 0.25, 10, "", "a", "b", "ab", "abc", "ba"),
    *([], [1], [1, 2], ["a"], [1, "a"], ["a", "b", 3], [[1]], [None, None]),
    *({}, {"a": 1}, {"a": "a"}, {"b": 2}, {"a": 3, "b": "b"}, {"c": None}, {"a": {"a": 1}}),
    *({"a": 1, "b": 1, "c": 1}, {"b": [1]}, {"ab": 2}, {"a": None, "ab": "a"}),
]


def leaf(draw: random.Random) -> dict[str, Any]:
    """One keyword."""
    names = ["a", "b", "c", "ab"]
    keywords: dict[str, list[Any]] = {
        "minimum": [0, 1, 2.5],
        "exclusiveMaximum": [1, 3, 10],
        "multipleOf": [1, 2, 3, 0.5],
        "minLength": [0, 1, 2],
        "maxLength": [0, 1, 2],
        "pattern": ["^a", "b$", "^[ab]*$", "a|^b"],
        "required": [[name] for name in names] + [["a", "b"]],
        "minItems": [0, 1, 2],
        "maxItems": [0, 1, 2],
        "maxProperties": [0, 1, 2],
        "minProperties": [0, 1],
        "dependentRequired": [{"a": ["b"]}, {"b": ["c"]}, {"c": ["a", "b"]}],
        "enum": [draw.sample(VALUES, 5)],
        "const": VALUES,
        "type": [*TYPES, draw.sample(TYPES, draw.randrange(1, 4))],
    }
    keyword = draw.choice(list(keywords))
    return {keyword: draw.choice(keywords[keyword])}


def random_schema(draw: random.Random, depth: int) -> Any:
    """A schema in which all is stated that would otherwise be read in the narrow way: types, and
    whether there may be properties that it does not name."""
    if depth == 0:
        if draw.random() < 0.1:
            return draw.choice([True, False])
        return {"type": TYPES, "additionalProperties": True, **leaf(draw)}

    def below() -> Any:
        return random_schema(draw, depth - 1)

    parts: dict[str, Any] = {"type": draw.sample(TYPES, draw.randrange(3, 8))}
    parts["additionalProperties"] = True
    for _ in range(draw.randrange(1, 3)):
        kind = draw.choice(["leaf", "all", "any", "one", "not", "if", "members", "items", "names"])
        match kind:
            case "leaf":
                parts |= {key: value for key, value in leaf(draw).items() if key != "type"}
            case "all" | "any" | "one":
                parts[f"{kind}Of"] = [below() for _ in range(draw.randrange(1, 4))]
            case "not":
                parts["not"] = below()
            case "if":
                parts |= {"if": below(), draw.choice(["then", "else"]): below()}
            case "members":
                parts["properties"] = {name: below() for name in draw.sample(["a", "b", "c"], 2)}
                if draw.random() < 0.5:
                    parts["additionalProperties"] = draw.choice([False, True, below()])
                if draw.random() < 0.3:
                    parts["patternProperties"] = {"^a": below()}
            case "items":
                parts["prefixItems"] = [below() for _ in range(draw.randrange(3))] or [True]
                if draw.random() < 0.5:
                    parts["items"] = below()
            case _:
                parts["propertyNames"] = draw.choice([{"maxLength": 1}, {"enum": ["a", "b"]}])
    return parts


def compare(schema: Any, values: list[Any]) -> bool:
    """Whether the normal form could be made; if so, it must agree on all values."""
    try:
        source, unenforced = rewrite_schema(json.dumps(schema), "llguidance")
    except GrammarError as refusal:
        if "no value can satisfy it" in str(refusal):
            assert not any(judge(schema).is_valid(value) for value in values), schema
        return False
    if unenforced:
        return False
    normal = jsonschema.Draft202012Validator(json.loads(source))
    before = jsonschema.Draft202012Validator(schema)
    for value in values:
        assert before.is_valid(value) == normal.is_valid(value), (schema, source, value)
    return True


def test_random_schemas_allow_what_they_allowed() -> None:
    draw = random.Random(7)
    assert sum(compare(random_schema(draw, 2), VALUES) for _ in range(250)) > 100


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_many_random_schemas_allow_what_they_allowed(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(1500):
        compare(random_schema(draw, draw.choice([1, 2, 2, 3])), VALUES)


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_no_normal_form_of_the_corpus_allows_more(library: Any) -> None:
    for schema in SCHEMAS:
        try:
            source, unenforced = rewrite_schema(json.dumps(schema), library)
        except GrammarError:
            continue
        normal = jsonschema.Draft202012Validator(json.loads(source))
        if unenforced or (library == "xgrammar" and '"pattern' in source):
            continue  # XGrammar's patterns are for the text between the quotes
        for value in VALUES:
            # XGrammar has no properties beyond the named ones, unless they are allowed.
            if library == "xgrammar" and isinstance(value, dict):
                continue
            assert not normal.is_valid(value) or judge(schema).is_valid(value), (schema, value)


def served(schema: Any, library: Any = "llguidance") -> Any:
    source, unenforced = rewrite_schema(json.dumps(schema), library)
    assert unenforced == ()
    return json.loads(source)


INTEGER = {"type": "integer"}
STRING = {"type": "string"}
AB = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}


@pytest.mark.parametrize(
    ("schema", "normal"),
    [
        ({"type": "string", "uniqueItems": False, "if": {}}, {"type": "string"}),
        ({"type": "integer", "anyOf": [{"minimum": 3}]}, {"type": "integer", "minimum": 3}),
        (
            {"allOf": [{"minimum": 3}, {"maximum": 9}, INTEGER]},
            {**INTEGER, "minimum": 3, "maximum": 9},
        ),
        ({"enum": [1, "a", 5], "type": "integer", "maximum": 4}, {"enum": [1]}),
        ({"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": INTEGER}}, {**INTEGER, "minimum": 3}),
        ({"oneOf": [INTEGER, {"type": "null"}]}, {"anyOf": [INTEGER, {"type": "null"}]}),
        ({**AB, "dependencies": {}}, {**AB, "additionalProperties": False}),
        ({**AB, "dependencies": {"a": []}}, {**AB, "additionalProperties": False}),
        (
            {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 2},
            {"enum": [[1, 2], [2, 1]]},
        ),
        ({**INTEGER, "multipleOf": 4, "minimum": 1, "maximum": 12}, {"enum": [4, 8, 12]}),
        ({"type": "number", "multipleOf": 2}, {"type": "integer", "multipleOf": 2}),
        (
            {"type": "object", "propertyNames": {"enum": ["a"]}},
            {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        ),
        (
            {"type": "number", "minimum": 1, "exclusiveMinimum": True},
            {"type": "number", "exclusiveMinimum": 1},
        ),
        ({"minLength": 2}, {"type": "string", "minLength": 2}),
    ],
)
def test_harmless_forms_are_written_in_simple_ones(schema: Any, normal: Any) -> None:
    found = served(schema)
    if "anyOf" in normal:
        assert found == normal or found == {"type": ["integer", "null"]}
    else:
        assert found == normal


def test_a_schema_that_needs_itself_stays_finite() -> None:
    tree = {
        "type": "object",
        "properties": {
            "next": {"$ref": "#"},
            "all": {"allOf": [{"$ref": "#"}, {"required": ["next"]}]},
        },
    }
    assert len(json.dumps(served(tree))) < 1000


def test_alternatives_that_combine_without_end_are_refused() -> None:
    def pair(name: str) -> dict[str, Any]:
        return {"anyOf": [{"required": [name]}, {"maxProperties": 50, "minProperties": 1}]}

    schema = {"type": "object", "allOf": [pair(f"p{index}") for index in range(30)]}
    with pytest.raises(GrammarError, match=f"more than {MAX_BRANCHES} ways"):
        rewrite_schema(json.dumps(schema), "xgrammar")
    impossible = {"allOf": [{"anyOf": [{"type": "null"}, {"type": "string"}]}] * 30 + [INTEGER]}
    with pytest.raises(GrammarError, match="no value can satisfy it"):
        rewrite_schema(json.dumps(impossible), "xgrammar")


def test_a_schema_that_grows_too_large_is_refused_in_words_about_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = MAX_SOURCE_BYTES // 16  # the real limit takes seconds to get to
    monkeypatch.setattr(reading, "MAX_SOURCE_BYTES", most)
    names = {f"property_{index:04}": INTEGER for index in range(100)}
    one_of = [{"required": [f"property_{index:04}"]} for index in range(25)]
    schema = {"type": "object", "properties": names, "anyOf": one_of}
    said = rf"its alternatives and references, worked out, take \d+ bytes, more than {most};"
    with pytest.raises(GrammarError, match=said):
        read(GrammarSpec.from_request({"json": schema}), "xgrammar")


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_nesting_that_the_rewriting_adds_counts_for_nothing(library: Any) -> None:
    nullable: Any = INTEGER
    for _ in range(31):
        nullable = {"type": ["object", "null"], "properties": {"a": nullable}}
    links = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(60)}
    chain = {"$ref": "#/$defs/d0", "$defs": {**links, "d60": INTEGER}}
    for schema, depth in ((nullable, 31), (chain, 60)):
        found = read(GrammarSpec.from_request({"json": schema}), library)
        assert json_depth(json.loads(found.spec.source)) < 48
        value: Any = 1
        for _ in range(depth):
            value = {"a": value}
        validator = jsonschema.Draft202012Validator(json.loads(found.spec.source))
        assert validator.is_valid(value)
        assert not validator.is_valid({"a": value})


def chain(links: int, **more: Any) -> dict[str, Any]:
    """Objects of one property each, one inside the other, by reference."""
    inner = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, **more} for i in range(links)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**inner, f"d{links}": INTEGER}}


def test_references_may_lead_from_one_to_the_next_more_often_than_calls_may_nest() -> None:
    written, unenforced = rewrite_schema(json.dumps(chain(5000)), "llguidance")
    schema, found = json.loads(written), 0
    inner = schema
    while inner != INTEGER:
        if "$ref" in inner:
            inner = schema["$defs"][inner["$ref"].removeprefix("#/$defs/")]
        else:
            found, inner = found + 1, inner["properties"]["a"]
    assert (found, unenforced) == (5000, ())


def test_a_node_may_have_more_choices_than_calls_may_nest() -> None:
    each = [{"anyOf": [{"properties": {f"p{i}": INTEGER}, "type": "object"}]} for i in range(1200)]
    written, _ = rewrite_schema(json.dumps({"allOf": each}), "xgrammar")
    assert json.loads(written)["properties"] == {f"p{i}": INTEGER for i in range(1200)}


@pytest.mark.parametrize("limit", [1000, 2000])  # a compiler of models raises it, for example
def test_how_many_schemas_may_need_the_next_one_is_a_number_of_our_own(limit: int) -> None:
    at = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        rewrite_schema(json.dumps(chain(MAX_NEEDED - 1, required=["a"])), "llguidance")
        said = f"json: at #/[$]defs/d{MAX_NEEDED + 1}: more than {MAX_NEEDED} schemas in a row need"
        for links in (MAX_NEEDED + 1, 5000):
            with pytest.raises(GrammarError, match=said):
                rewrite_schema(json.dumps(chain(links, required=["a"])), "llguidance")
    finally:
        sys.setrecursionlimit(at)


def test_the_size_of_a_rewritten_schema_is_that_of_its_text() -> None:
    texts = [f"汉字测试词语{index}" for index in range(7000)]
    source = json.dumps({"enum": texts}, ensure_ascii=False)
    for spec in (GrammarSpec("json", source), GrammarSpec.from_request({"json": {"enum": texts}})):
        found = read(spec, "llguidance")
        assert json.loads(found.spec.source) == {"enum": texts}
    content = {"type": "json_schema", "json_schema": {"enum": texts}}
    tag = {"type": "structural_tag", "format": content}
    inside = read(GrammarSpec.from_request({"structural_tag": tag}), "xgrammar")
    assert json.loads(inside.spec.source) == tag


def test_what_no_text_can_hold_is_left_out() -> None:
    values = ["\ud800", "é", {"\udc00": 1}, [["\udfff"]]]
    assert served({"enum": values}) == {"enum": ["é"]}
    schema = {"type": "object", "properties": {"\ud800": INTEGER, "a": INTEGER}}
    assert list(served(schema)["properties"]) == ["a"]
    for impossible in ({"enum": ["\ud800"]}, {"type": "object", "required": ["\ud800"]}):
        with pytest.raises(GrammarError, match="no value can satisfy it"):
            served(impossible)


@pytest.mark.parametrize(
    "branch",
    [
        {"type": "string", "pattern": "^a$", "minLength": 3},
        {"type": "string", "format": "date", "maxLength": 3},
        {"type": "string", "not": {"const": ""}, "maxLength": 0},
    ],
)
def test_a_branch_without_strings_is_left_out(branch: Any) -> None:
    assert served({"anyOf": [branch, INTEGER]}) == INTEGER


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_what_is_impossible_is_left_out_of_what_is_closed(library: Any) -> None:
    never = {"maximum": 3, "exclusiveMinimum": 100}
    schema: dict[str, Any] = {"type": "object", "required": ["y"]}
    schema["properties"] = {"x": never, "y": INTEGER}
    validator = jsonschema.Draft202012Validator(served(schema, library))
    assert validator.is_valid({"y": 1})
    assert not validator.is_valid({"x": 200, "y": 1})
    schema = {"type": "object", "patternProperties": {"^a": {**INTEGER, **never}}}
    assert "patternProperties" not in served(schema, library)
    both = {**schema, "patternProperties": {**schema["patternProperties"], "b$": STRING}}
    written, _ = rewrite_schema(json.dumps(both), library)
    assert not jsonschema.Draft202012Validator(json.loads(written)).is_valid({"ab": "x"})


SELF = {"$ref": "#"}


@pytest.mark.parametrize(
    ("schema", "noted"),
    [
        ({"type": "array", "uniqueItems": True, "items": SELF}, ["'uniqueItems' cannot be"]),
        ({"type": ["object", "string"], "propertyNames": SELF}, []),
    ],
)
def test_a_schema_whose_values_would_be_listed_for_itself_stays_finite(
    schema: Any, noted: list[str]
) -> None:
    _, notes = rewrite_schema(json.dumps(schema), "llguidance")
    assert len(notes) == len(noted)
    assert all(words in note for words, note in zip(noted, notes, strict=True))


def test_properties_that_there_must_be_count_as_alternatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema_normal, "MAX_STEPS", 300)
    names = {f"p{index}": INTEGER for index in range(10)}
    extra = [{"not": {"additionalProperties": {"enum": [each]}}} for each in range(8)]
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    assert served({**schema, "allOf": extra[:1]})
    with pytest.raises(GrammarError, match="too many alternatives combine"):
        served({**schema, "allOf": extra})


def test_a_common_multiple_of_very_many_digits_is_noted() -> None:
    steps = [{"multipleOf": 10**4000 + 1}, {"multipleOf": 10**4000 + 3}]
    schema = {"properties": {"a": {"type": "integer", "allOf": steps}}}
    _, (note,) = rewrite_schema(json.dumps(schema), "llguidance")
    assert note.startswith("json: at #/properties/a/allOf/0: 'multipleOf': its numbers have")


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_counts_that_no_text_comes_to_are_left_out(library: Any) -> None:
    most = {"maxLength": 10**20, "maxItems": 2**31, "maxProperties": 2**31}
    union = served({"type": ["string", "array", "object"], **most}, library)["anyOf"]
    assert union == [{"type": "string"}, {"type": "array"}, {"type": "object"}]
    for keyword, kind in (("minItems", "array"), ("minLength", "string")):
        _, (note,) = rewrite_schema(json.dumps({"type": kind, keyword: 2**31}), library)
        assert note == f"json: at #: {keyword!r} above 2147483647 cannot be enforced"


def test_names_that_could_mean_two_schemas_are_refused() -> None:
    twice = {"x": {"$anchor": "n", "type": "null"}, "y": {"$anchor": "n", "type": "string"}}
    with pytest.raises(GrammarError, match=r"names several schemas: #/\$defs/x, #/\$defs/y"):
        rewrite_schema(json.dumps({"$ref": "#n", "$defs": twice}), "xgrammar")


def test_a_place_is_a_pointer_that_leads_back() -> None:
    document = Document({"properties": {"a/b": {"items": [{}, {"~": 1}]}}})
    place = document.target("#", "#/properties/a~1b/items/1")
    assert document.at(place) == {"~": 1}
    assert document.target("#", "#/properties/a%2Fb".replace("%2F", "~1")) == "#/properties/a~1b"
    assert Normaliser(document).canonical(()) == ()
