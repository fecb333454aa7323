"""Regular expressions are read right or refused: against Python's `re`, on random texts."""

from __future__ import annotations

import random
import re

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured import regex_language
from stepweave.structured.backend import GrammarBackend
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.reading import read
from stepweave.structured.regex_language import (
    lengths,
    match_language,
    other_than,
    search_language,
    texts,
    with_lengths,
)
from stepweave.structured.regex_syntax import Regex, RegexError, finds, python_regex
from stepweave.structured.regex_text import json_text, longest_count, regex_text

from .corpus import PATTERNS
from .test_walks import spelled, takes

ALPHABET = 'abcxyzA0129-,._/ \n"\\^]é😀'
READABLE = PATTERNS[:-11]
REFUSED = PATTERNS[-11:]


def random_texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(ALPHABET, k=draw.randrange(7))) for _ in range(count)]


def random_pattern(draw: random.Random, depth: int) -> str:
    """A pattern of the forms that every dialect reads alike."""
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(["a", "b", "[ab]", "[^a]", r"\d", r"\w", ".", "x", r"\.", "(?:)"])
    if draw.random() < 0.4:
        return "".join(random_pattern(draw, depth - 1) for _ in range(draw.randrange(1, 4)))
    inner = random_pattern(draw, depth - 1)
    if draw.random() < 0.4:
        return f"({inner}|{draw.choice(['', '^', ''])}{random_pattern(draw, depth - 1)})"
    if draw.random() < 0.3:
        return draw.choice([f"^{inner}", f"{inner}$", f"^{inner}$", f"(^|a){inner}"])
    return f"(?:{inner}){draw.choice(['?', '*', '+', '{2}', '{1,2}', '{0,1}', '{2,}', '*?'])}"


def agree(pattern: str, some: list[str]) -> None:
    found = re.compile(python_regex(search_language(pattern)))
    whole = re.compile(python_regex(match_language(pattern)))
    for text in some:
        # Python's "." takes more line ends, and its "$" one more place.
        if "\n" in text:
            continue
        searched = found.fullmatch(text)
        assert bool(searched) == bool(re.search(pattern, text, re.ASCII)), (pattern, text)
        matched = whole.fullmatch(text)
        assert bool(matched) == bool(re.fullmatch(pattern, text, re.ASCII)), (pattern, text)
        assert finds(pattern, text) == bool(searched)


@pytest.mark.parametrize("pattern", READABLE)
def test_a_pattern_finds_what_it_finds_in_python(pattern: str) -> None:
    if r"\D" in pattern or r"\W" in pattern:
        pytest.skip("narrower than either dialect, on purpose")
    some = random_texts(1, 60)
    agree(pattern, [*some, *(text.replace(" ", "") * 2 for text in some), "v1-abc", "12:30"])


def test_random_patterns_find_what_they_find_in_python() -> None:
    draw = random.Random(3)
    read_ = 0
    for index in range(150):
        pattern = random_pattern(draw, 3)
        try:
            search_language(pattern)
        except RegexError:
            continue  # an anchor inside of a repetition
        read_ += 1
        agree(pattern, random_texts(index, 12))
    assert read_ > 100


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(?!a)b", "lookaround cannot be enforced (at character 1 of"),
        ("a(?<=b)", "lookaround cannot be enforced (at character 2 of"),
        (r"a\b", "a word boundary"),
        (r"(a)\1", "a back reference"),
        (r"\p{L}", "Unicode properties"),
        ("[]a]", "different readers (at character 2 of"),
        ("[^]", "different readers"),
        (r"\Aa", "different readers"),
        ("a{,2}", "write '{0,n}'"),
        ("(?i)a", "a group of this kind"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("^*", "an anchor cannot be repeated"),
        ("a{2,1}", "the wrong way round"),
        ("[b-a]", "the wrong way round"),
        ("(a", "this '(' is not closed (at character 1 of"),
        ("a)", "this ')' closes no group (at character 2 of"),
        ("[a", "this '[' is not closed"),
        ("a\\", "ends in a backslash"),
        (r"\xg1", "needs 2 hexadecimal digits"),
        ("(a$){2}", "an anchor in a repetition"),
        ("a{1000000000}", "too long"),
        (r"\c1", "means different things to different readers"),
    ],
)
def test_what_cannot_be_read_is_refused_by_position(pattern: str, what: str) -> None:
    with pytest.raises(RegexError) as refusal:
        search_language(pattern)
    assert what in str(refusal.value)


@pytest.mark.parametrize("pattern", REFUSED)
@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_a_refused_expression_is_refused_for_every_library(pattern: str, library: str) -> None:
    reading = read(GrammarSpec("regex", pattern), library)  # type: ignore[arg-type]
    assert reading.unenforced
    assert reading.unenforced[0].startswith("regex: ")


@pytest.mark.parametrize("pattern", READABLE)
def test_the_text_for_libraries_means_the_same(pattern: str) -> None:
    tree = search_language(pattern)
    if tree == search_language("$^a"):
        return
    written = regex_text(tree)
    for text in [*random_texts(5, 40), "v1-ab", "v1-abcd", "a", "xy", "ab", "aab"]:
        assert bool(re.fullmatch(written, text)) == bool(re.fullmatch(python_regex(tree), text))


def test_forms_that_one_library_reads_wrong_are_not_written() -> None:
    for pattern in READABLE:
        tree = search_language(pattern)
        written = regex_text(tree) if tree != search_language("b^") else ""
        plain = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "_", written)
        assert not set("?^$") & set(plain), (pattern, written)
        assert not re.search(r"(?<!\\)\[\\?\^", written), (pattern, written)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\x1bA",
        r"[\x00-\x1f0-9]",
        r"[\x07a-f]",
        r"\x00a",
        r"[\x00a]",
        r"[\x00^]",
        r"\x85a",
        r"\x7f1",
    ],
)
def test_controls_before_hexadecimal_digits_are_read_as_they_are_written(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast, pattern: str
) -> None:
    compiled = backend.compile(GrammarSpec("regex", pattern))
    letters = {text: index for index, text in spelled(tokenizer).items() if len(text) == 1}
    some = [chr(code) for code in range(0x100)] + ["\u01ba", "\u01fa"]
    for text in [*some, *(first + last for first in "\x00\x1b\x7f\x85" for last in "aA1")]:
        assert takes(compiled, letters, text) == bool(re.fullmatch(pattern, text)), ascii(text)


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [
        ("[ab]", ["a", "b"]),
        ("(x|y){2}", ["xx", "xy", "yx", "yy"]),
        ("a{0,2}|aa|b?", ["", "a", "aa", "b"]),
        ("(){900000}", [""]),
        ("[a-c]{2}", None),
        ("a*", None),
        ("a{300}", None),
        ("(a{0,300}){0,300}", None),
    ],
)
def test_few_texts_are_listed(pattern: str, listed: list[str] | None) -> None:
    found = texts(match_language(pattern), 8)
    assert found == listed if listed is None else sorted(found or ()) == listed


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert finds(r"^\uD83D\uDE00$", "😀")
    assert lengths(search_language(r"^\uD83D\uDE00$")) == (1, 1)


def test_characters_that_json_must_escape_are_noticed() -> None:
    assert json_text(search_language('^a"$')) is None
    assert json_text(search_language(r"^[\\]$")) is None
    narrowed = json_text(search_language('^[a"]$'))
    assert narrowed is not None
    assert regex_text(narrowed) == "a"


def test_a_long_text_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all of it is looked at: part by part, 5,000 characters took seconds."""
    looked: list[int] = []
    join = regex_language.sequence

    def counted(*parts: Regex) -> Regex:
        looked.append(len(parts))
        return join(*parts)

    monkeypatch.setattr(regex_language, "sequence", counted)
    search_language("a" * 5000)
    assert looked.count(5000) == 1
    assert len(looked) < 10


def test_lengths_are_put_into_a_pattern_where_one_class_repeats() -> None:
    tree = with_lengths(search_language("^a[b-d]*e$"), 3, 5)
    assert tree is not None
    for text in ("ae", "abe", "abcde", "abcdbe"):
        assert bool(re.fullmatch(python_regex(tree), text)) == (3 <= len(text) <= 5)
    assert with_lengths(search_language("^(ab)*$"), 3, 5) is None
    fixed = search_language("^[0-9]{4}$")
    assert with_lengths(fixed, 0, 4) is fixed


def test_texts_other_than_some() -> None:
    some = ["", "a", "ab", "b", "x😀"]
    pattern = re.compile(python_regex(other_than(some)), re.DOTALL)
    for text in [*some, "abc", "aa", "ba", "x", "😀", "x😀x", "\n"]:
        assert bool(pattern.fullmatch(text)) == (text not in some), text


def test_the_longest_repetition_is_found_in_any_depth() -> None:
    assert longest_count(search_language("^(a|(b{2}c{3,200})*)$")) == 200
