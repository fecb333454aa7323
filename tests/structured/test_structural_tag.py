"""Free text with marked sections: both published forms, in both libraries where they can."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.backend import CompiledGrammar, GrammarBackend
from stepweave.structured.grammar import MAX_DEPTH, GrammarError, GrammarSpec
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.structural_tag import MAX_TAGS
from stepweave.structured.xgrammar_backend import XGrammarBackend
from stepweave.testing.models import tiny_tokenizer

from .conftest import EOS, STOPS, VOCAB, make_backend

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def tag(begin: str, schema: object, end: str = "</f>") -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*tags: dict[str, Any], **options: Any) -> dict[str, Any]:
    format_ = {"type": "triggered_tags", "triggers": ["<f="], "tags": list(tags), **options}
    return {"type": "structural_tag", "format": format_}


TWO = triggered(tag("<f=a>", AGE), tag("<f=n>", NAME))
OLDER = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": AGE, "end": "</f>"},
        {"begin": "<f=n>", "schema": json.dumps(NAME), "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def spec(value: object) -> GrammarSpec:
    return GrammarSpec.from_request({"structural_tag": value})


def accepts(compiled: CompiledGrammar, tokenizer: PreTrainedTokenizerFast, text: str) -> bool:
    matcher = compiled.matcher()
    return all(matcher.accept(token) for token in [*tokenizer.encode(text), EOS])


def test_both_forms_become_one_spec() -> None:
    assert spec(OLDER) == spec(TWO) == spec(json.dumps(TWO))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("hello <world> no call", True),
        ("", True),
        ('hello <f=a>{"age": 12}</f> yes', True),
        ('<f=n>{"name": "ann"}</f> and <f=a>{"age": 3}</f>', True),
        ('<f=a>{"name": "ann"}</f>', False),
        ('<f=a>{"age": 12}', False),
        ("a <f=b>", False),
        ('<f=a>{"age": 12}</g>', False),
    ],
)
def test_the_grammar_holds_inside_the_tags_and_only_there(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast, text: str, good: bool
) -> None:
    assert accepts(backend.compile(spec(TWO)), tokenizer, text) is good


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "an object is needed, not int"),
        ("[", "not JSON"),
        ({"type": "function", "format": {}}, "'type' is 'function'"),
        ({"type": "structural_tag"}, "'format' is missing"),
        ({"structures": {}, "triggers": []}, "must both be lists"),
        ({"structures": [], "triggers": [], "format": {}}, "unknown key 'format'"),
        ({"structures": [{"schema": {}}], "triggers": []}, "structures/0: 'begin'"),
        (triggered(tag("<f=a>", {}), trigger=[]), "unknown key 'trigger' .*mean 'triggers'"),
        (triggered({**tag("<f=a>", {}), "ends": "x"}), "tags/0: unknown key 'ends' of the format"),
        (triggered(tag("<f=a>", {}), nonsense=1), "#/format: unknown key 'nonsense' of the format"),
        (
            {"format": {"type": "regex", "pattern": 5}},
            "#/format/pattern: a string is needed, not int",
        ),
        (triggered(*[tag(f"<f={i}>", {}) for i in range(MAX_TAGS + 1)]), f"{MAX_TAGS + 1} tags"),
    ],
)
def test_what_is_no_structural_tag_is_refused_before_any_library(
    value: object, message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        spec(value)


def test_nesting_is_limited() -> None:
    nested: dict[str, Any] = {"type": "const_string", "value": "a"}
    for _ in range(MAX_DEPTH):
        nested = {"type": "optional", "content": nested}
    with pytest.raises(GrammarError, match="structural_tag: nested"):
        spec({"type": "structural_tag", "format": nested})


def test_schemas_inside_are_checked_like_any_other(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    unsound = triggered(tag("<f=a>", {"type": "array", "items": {"contains": {"type": "null"}}}))
    place = "in #/format/tags/0/content/json_schema: json: at #/items: 'contains' cannot be"
    with pytest.raises(GrammarError, match=place):
        backend.compile(spec(unsound))
    name = "xgrammar" if isinstance(backend, XGrammarBackend) else "llguidance"
    lenient = make_backend(name, tokenizer, VOCAB, strict=False)
    (warning,) = lenient.compile(spec(unsound)).warnings
    assert place in warning


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "const_string", "value": "hello"},
        triggered(tag("<f=a>", AGE), at_least_one=True)["format"],
        triggered(tag("<f=a>", AGE), stop_after_first=True)["format"],
        triggered({**tag("<f=a>", AGE), "end": ["</f>", "</g>"]})["format"],
        triggered({**tag("<f=a>", AGE), "content": {"type": "any_text"}})["format"],
    ],
)
def test_what_only_one_library_can_say_the_other_refuses_by_name(
    xgrammar: XGrammarBackend, llguidance: LLGuidanceBackend, format_: dict[str, Any]
) -> None:
    asked = spec({"type": "structural_tag", "format": format_})
    xgrammar.compile(asked)
    with pytest.raises(GrammarError, match="structural_tag: llguidance has no equal for"):
        llguidance.compile(asked)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x", "Format must be an object"),
        ({"type": "json_schema"}, "must have a json_schema field"),
    ],
)
def test_a_malformed_tag_is_refused_in_words_about_it(
    tokenizer: PreTrainedTokenizerFast, content: object, words: str
) -> None:
    with pytest.raises(GrammarError, match=words):
        AutoBackend(tokenizer, VOCAB, STOPS).compile(
            spec(triggered({**tag("<f=a>", AGE), "content": content}))
        )


@pytest.mark.parametrize(
    ("style", "form"),
    [
        ("qwen_xml", "<parameter=a>{}</parameter>"),
        ("minimax_xml", '<parameter name="a">{}</parameter>'),
        ("glm_xml", "<arg_key>a</arg_key><arg_value>{}</arg_value>"),
        ("deepseek_xml", '<｜DSML｜parameter name="a" string="false">{}</｜DSML｜parameter>'),
    ],
)
def test_a_schema_is_enforced_in_every_style(
    xgrammar: XGrammarBackend, tokenizer: PreTrainedTokenizerFast, style: str, form: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 9}]}},
        "required": ["a"],
    }
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    compiled = xgrammar.compile(spec({"type": "structural_tag", "format": content}))
    taken = [each for each in ("5", "50", "foo") if accepts(compiled, tokenizer, form.format(each))]
    assert taken == ["5"]


def test_names_that_any_order_lets_come_twice_cannot_be_required(
    xgrammar: XGrammarBackend,
) -> None:
    content = {"type": "json_schema", "json_schema": AGE, "any_order": True}
    with pytest.raises(GrammarError, match="with 'any_order', 'required' cannot be enforced"):
        xgrammar.compile(spec({"type": "structural_tag", "format": content}))
    free = {**AGE, "required": []}
    xgrammar.compile(
        spec({"type": "structural_tag", "format": {**content, "json_schema": free}}),
    )


def test_a_grammar_of_endless_texts_is_refused_inside_too(backend: GrammarBackend) -> None:
    content = {"type": "grammar", "grammar": 'root ::= "a" root'}
    with pytest.raises(GrammarError, match="in #/format/grammar: grammar: no text of it ends"):
        backend.compile(spec({"type": "structural_tag", "format": content}))


def test_a_tag_that_no_trigger_leads_to_is_refused(backend: GrammarBackend) -> None:
    with pytest.raises(GrammarError, match="structural_tag: "):
        backend.compile(spec(triggered(tag("<g=a>", AGE))))


def test_json_inside_a_tag_is_compact_unless_whitespace_is_asked_for() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": "<", "content": content, "end": ">"}
    spec = GrammarSpec.from_request({"structural_tag": {"type": "structural_tag", "format": tag}})
    tokenizer = tiny_tokenizer(320)
    for any_whitespace in (False, True):
        backend = XGrammarBackend(
            tokenizer, 320, (0,), BackendOptions(any_whitespace=any_whitespace)
        )
        matcher = backend.compile(spec).matcher()
        taken = [matcher.accept(token) for token in tokenizer('<{ \n\n"a":1}>')["input_ids"]]
        assert all(taken) == any_whitespace
        matcher = backend.compile(spec).matcher()
        assert all(matcher.accept(token) for token in tokenizer('<{"a": 1}>')["input_ids"])
