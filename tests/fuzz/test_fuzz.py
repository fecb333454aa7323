"""Random input at the three doors: whatever comes, an error that its sender can act on, or use."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stepweave.configs.load import shipped, shipped_file
from stepweave.configs.prompts import PromptLine
from tests.fuzz import targets
from tests.fuzz.coverage import recorded

CORPUS = Path(__file__).parent / "corpus"
FUZZ = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
GRAMMARS = settings(FUZZ, max_examples=25)

WORDS = (
    *("*a", "&a", "<<: *a", "- ", ": ", "!!python/object:os.system", "? ", "{", "}", "[", "]"),
    *(
        "|",
        ">",
        "---",
        "...",
        "%YAML 1.1",
        "\t",
        "\x00",
        "\ufeff",
        "\\ud800",
        '"\\x',
        "1e999",
        ".nan",
    ),
    *("0x", "-9223372036854775809", "null", "~", "extends: async", "depth: -1", "nodes: []"),
    *("kind: draft", "values:", "states: [a]", "host: {reads: [a@-1]}", "é", "🙂"),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A shipped config with a few edits."""
    text = shipped_file(draw(st.sampled_from(shipped()))).read_text(encoding="utf-8")
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        cut = text[start:end]
        edit = draw(st.sampled_from(["delete", "insert", "repeat", "replace", "move"]))
        word = draw(st.sampled_from(WORDS))
        if edit == "move":
            text = text[:start] + text[end:]
            to = draw(st.integers(0, len(text)))
            text = text[:to] + cut + text[to:]
        else:
            middle = {"delete": "", "insert": word + cut, "repeat": cut * 2, "replace": word}
            text = text[:start] + middle[edit] + text[end:]
    return text.encode("utf-8", "surrogatepass")


@FUZZ
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    )
)
def test_any_bytes_are_a_config_or_an_error_in_it(data: bytes) -> None:
    targets.yaml(data)


@FUZZ
@given(mutated())
def test_a_config_with_typing_errors_loads_or_says_what_is_wrong(data: bytes) -> None:
    targets.yaml(data)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 40),
    st.floats(),
    st.floats(-2, 2),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = sorted(PromptLine.model_fields)


@st.composite
def lines(draw: st.DrawFn) -> Any:
    """An object that is nearly a request, or one."""
    line: dict[str, Any] = {}
    if draw(st.integers(0, 3)):
        line["prompt"] = draw(st.text(max_size=10))
    good: dict[str, st.SearchStrategy[Any]] = {
        "id": st.text(max_size=5) | st.integers(0, 99),
        "max_tokens": st.integers(1, 500),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0.1, 1),
        "seed": st.integers(0, 2**63 - 1),
        "stop": st.text(min_size=1, max_size=4) | st.lists(st.text(min_size=1, max_size=4)),
        "logit_bias": st.dictionaries(st.integers(0, 99).map(str), st.floats(-5, 5), max_size=3),
        "structured_outputs": st.fixed_dictionaries({"regex": st.text(max_size=4)}),
        "bad_words": st.lists(st.text(min_size=1, max_size=4), max_size=2),
    }
    for key in draw(st.lists(st.sampled_from([*good, *KEYS]), max_size=4, unique=True)):
        line[key] = draw(good[key] if key in good and draw(st.integers(0, 9)) else VALUES)
    return line


@FUZZ
@given(st.one_of(st.binary(max_size=200), st.lists(VALUES | lines(), max_size=3)))
def test_any_prompts_file_is_read_or_refused_line_by_line(given_: Any) -> None:
    if not isinstance(given_, bytes):
        given_ = "\n".join(map(json.dumps, given_)).encode()
    targets.prompts(given_)


@FUZZ
@given(lines())
def test_a_line_that_is_taken_survives_being_written_and_read_again(line: Any) -> None:
    targets.prompts(json.dumps(line).encode())


# -- grammars ---------------------------------------------------------------------------------

NAMES = st.text(string.ascii_lowercase + 'é"\\ ', max_size=3)
LEAVES = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "null", "x", "number"])}),
    st.fixed_dictionaries({"const": SCALARS}),
    st.fixed_dictionaries({"enum": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries(
        {"pattern": st.text(string.ascii_lowercase + "^$[]()|*+.\\", max_size=8)}
    ),
    st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/$defs/a", "#/x", "http://x", ""])}),
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={"minimum": st.integers(-9, 9), "maximum": st.integers(-9, 9)},
    ),
    st.booleans(),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "properties": st.dictionaries(NAMES, inner, max_size=3),
                "required": st.lists(NAMES, max_size=2),
                "additionalProperties": inner,
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={
                "items": inner,
                "prefixItems": st.lists(inner, max_size=2),
                "minItems": st.integers(-1, 4),
                "maxItems": st.integers(-1, 4),
            },
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, max_size=2), "$defs": st.just({"a": {}})}),
    ),
    max_leaves=5,
)


def pieces(*texts: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(texts), max_size=10).map("".join)


def grown(*leaves: str, repeats: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Well-formed expressions: sequences, alternatives, groups, repetitions."""
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(" ".join if '"x"' in leaves else "".join),
            st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
            st.tuples(inner, st.sampled_from(repeats)).map(lambda two: f"({two[0]}){two[1]}"),
        ),
        max_leaves=6,
    )


REPEATS = ("*", "+", "?", "{2,3}", "{0,2}", "{3}", "{2,}")
REGEXES = st.one_of(
    grown("a", "b", "[a-c]", "[^x]", ".", "\\d", "\\w", "é", "🙂", "\\.", repeats=REPEATS),
    pieces(
        *("a", "[a-c]", "[^x]", ".", "\\d", "(", ")", "|", "*", "+", "?", "{2,3}", "{", "-", "\n"),
        *("^", "$", "\\", "[", "]", "(?=a)", "\\1", "é", "\\u0041", "(?i)"),
    ),
)
RULES = grown('"x"', '"yy"', "[a-z]", "[^a]", "root", "a", '"é"', '""', repeats=REPEATS)
EBNFS = st.one_of(
    st.tuples(RULES, RULES).map(lambda two: f"root ::= {two[0]}\na ::= {two[1]}\n"),
    pieces(
        *("root ::= ", "a ::= ", "\n", '"x" ', '"', "a ", "root ", "[a-z] ", "(", ")", "| ", "* "),
        *("+ ", "? ", "{1,2} ", "# c\n", "[^", '"" ', "é ", "::="),
    ),
)
TAGS = st.recursive(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("const_string"), "value": st.text(max_size=3)}),
        st.fixed_dictionaries({"type": st.just("any_text")}),
        st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": LEAVES}),
        st.fixed_dictionaries({"type": st.just("regex"), "pattern": REGEXES}),
        st.fixed_dictionaries({"type": st.just("nothing")}),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("sequence"), "elements": st.lists(inner, max_size=2)}
        ),
        st.fixed_dictionaries({"type": st.just("or"), "elements": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries(
            {
                "type": st.just("tag"),
                "begin": st.text(max_size=2),
                "content": inner,
                "end": st.text(max_size=2),
            }
        ),
    ),
    max_leaves=3,
)


@GRAMMARS
@given(SCHEMAS)
def test_any_schema_compiles_or_is_refused(schema: object) -> None:
    targets.grammar_request({"json": schema})


@GRAMMARS
@given(REGEXES)
def test_any_regular_expression_compiles_or_is_refused(pattern: str) -> None:
    targets.grammar_request({"regex": pattern})


@GRAMMARS
@given(EBNFS)
def test_any_grammar_text_compiles_or_is_refused(text: str) -> None:
    targets.grammar_request({"grammar": text})


@GRAMMARS
@given(TAGS)
def test_any_structural_tag_compiles_or_is_refused(tag: object) -> None:
    targets.grammar_request({"structural_tag": {"type": "structural_tag", "format": tag}})


@FUZZ
@given(st.dictionaries(st.sampled_from([*targets.SHORT.values(), "x"]), VALUES, max_size=2))
def test_a_request_of_another_form_is_refused(request: dict[str, object]) -> None:
    if request.get("json") in (True, {}):
        request = {}
    targets.grammar_request(request)


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_what_was_once_found_stays_mended(path: Path) -> None:
    targets.TARGETS[path.parent.name](recorded(path))


def test_the_doors_let_good_input_through() -> None:
    """A target that refused everything would find nothing."""
    assert all(targets.yaml(shipped_file(name).read_bytes()) for name in shipped())
    assert targets.prompts(b'{"prompt": "a", "stop": ["x"], "id": 3}\n\n{"prompt": "b"}')
    assert targets.grammar(b"\x00{}")
    assert targets.grammar_request({"regex": "[a-z]{3}"})
