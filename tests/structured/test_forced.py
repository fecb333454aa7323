"""The text that a grammar forces, in the tokens of the model's tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepweave.structured import forced
from stepweave.structured.backend import GrammarBackend, Matcher
from stepweave.structured.forced import ForcedTokens
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.reasoning import with_reasoning
from stepweave.structured.xgrammar_backend import XGrammarBackend
from stepweave.testing.models import tiny_tokenizer

VOCAB, EOS = 320, 0
TOKENIZER = tiny_tokenizer(VOCAB)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["fox", "fish"]}, "value": {"type": "boolean"}},
    "required": ["name", "value"],
    "additionalProperties": False,
}
SPEC = GrammarSpec.from_request({"json": SCHEMA})
BACKENDS: dict[str, Any] = {"xgrammar": XGrammarBackend, "llguidance": LLGuidanceBackend}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> GrammarBackend:
    made: GrammarBackend = BACKENDS[request.param](TOKENIZER, VOCAB, (EOS,))
    return made


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def text_of(tokens: tuple[int, ...]) -> str:
    return str(TOKENIZER.decode(list(tokens)))


def test_what_is_forced_is_the_text_up_to_the_next_choice(backend: GrammarBackend) -> None:
    matcher, found = backend.compile(SPEC).matcher(), ForcedTokens(TOKENIZER)
    whole = json.dumps({"name": "fox", "value": True}, separators=(",", ":"))
    start = text_of(found.of(matcher))
    assert start
    assert whole.startswith(start) or whole.replace(":", ": ").replace(",", ", ").startswith(start)
    assert found.of(matcher) == tuple(ids(start)), "by the tokenizer, as any text is"
    matcher.advance(ids(start))
    assert found.of(matcher) == (), "fox or fish"
    matcher.advance(ids("o")) if start.endswith("f") else matcher.advance(ids("fo"))
    after = text_of(found.of(matcher))
    assert after.startswith('x"')
    assert after.endswith(":") or after.endswith(": ")


def test_a_window_is_walked_and_the_matcher_stands_where_it_stood(backend: GrammarBackend) -> None:
    matcher, found = backend.compile(SPEC).matcher(), ForcedTokens(TOKENIZER)
    first = found.of(matcher)
    drafts = [*first, 5, 6]
    places = found.in_window(matcher, drafts, range(len(drafts)))
    assert places[0] == first
    assert not any(places[len(first) + 1 :]), "no further than the grammar allows"
    assert text_of(places[1]) == text_of(first)[len(text_of(first[:1])) :]
    assert found.of(matcher) == first


def test_each_branch_of_a_tree_is_walked(backend: GrammarBackend) -> None:
    spec = GrammarSpec.from_request({"choice": ["abc", "xyz"]})
    matcher, found = backend.compile(spec).matcher(), ForcedTokens(TOKENIZER)
    (a,), (b,), (x,), (y,) = map(ids, "abxy")
    places = found.in_window(matcher, [a, x, y, b, y], [0, 0, 1, 1, 2])
    assert [text_of(each) for each in places] == ["", "bc", "yz", "", "c", "z"]
    assert found.of(matcher) == ()


def test_nothing_is_forced_at_the_end_or_inside_reasoning(backend: GrammarBackend) -> None:
    compiled = backend.compile(GrammarSpec.from_request({"regex": "ab"}))
    found = ForcedTokens(TOKENIZER)
    matcher: Matcher = compiled.matcher()
    assert text_of(found.of(matcher)) == "ab"
    matcher.advance(ids("ab"))
    matcher.advance([EOS])
    assert found.of(matcher) == ()
    thinking = with_reasoning(compiled, [7]).matcher()
    assert found.of(thinking) == ()
    thinking.advance([9, 7])
    assert text_of(found.of(thinking)) == "ab"


def test_so_many_texts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced, "KEPT", 3)
    backend = XGrammarBackend(TOKENIZER, VOCAB, (EOS,))
    found = ForcedTokens(TOKENIZER)
    for word in ("ab", "cd", "ef", "gh", "ab"):
        compiled = backend.compile(GrammarSpec.from_request({"regex": word}))
        assert text_of(found.of(compiled.matcher())) == word
        assert len(found) <= 3


def test_a_choice_inside_of_a_character_ends_what_is_forced_before_it(
    backend: GrammarBackend,
) -> None:
    compiled = backend.compile(GrammarSpec.from_request({"choice": ["yes: 是", "yes: 晚"]}))
    matcher, found = compiled.matcher(), ForcedTokens(TOKENIZER)
    assert text_of(found.of(matcher)) == "yes: ", "both go on with a byte from E6 on"
    matcher.advance(ids("yes: 是")[:-1])
    assert found.of(matcher) == (), "it stands inside of a character"
    matcher.advance(ids("是")[-1:])
    assert matcher.accept(EOS)


def test_a_matcher_of_another_package_need_not_know() -> None:
    class Plain:
        pass

    plain: Any = Plain()
    assert ForcedTokens(TOKENIZER).of(plain) == ()


def test_of_a_long_text_no_more_is_read_than_a_window_drafts(backend: GrammarBackend) -> None:
    text = "the fox ran home and " * 300
    matcher = backend.compile(GrammarSpec.from_request({"choice": [text]})).matcher()
    forced = ForcedTokens(TOKENIZER).of(matcher)
    assert 62 < len(forced) < 1024
    assert text.startswith(text_of(forced))
    assert forced == tuple(ids(text))[: len(forced)]
