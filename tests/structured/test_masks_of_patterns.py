"""Every token of a mask is one that the matcher takes, whatever the pattern."""

from __future__ import annotations

import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured import schema_writer, schema_xgrammar
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.regex_syntax import Regex
from stepweave.structured.regex_text import regex_text
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import STOPS, make_backend
from .walking import next_tokens

PATTERNS = [
    *("^.+.json$", "^.{2}.x$", "^.{1,63}.com$", r" {3,5}\Wa{1}"),
    *(r"^(..)+\S{1,3}[a-z]$", r"^(\S\S)*[^0-9]\S$", "(..|x).x"),
]


def random_pattern(draw: random.Random) -> str:
    """Repetitions in a row of classes that have characters in common, and of groups of them."""

    def one() -> str:
        return draw.choice([".", r"\S", "[^a]", "[^0-9]", "a", "x", "-", r"\w", "é", "[a-z]"])

    parts = [
        draw.choice([one(), one(), one(), f"({one()}{one()})", f"({one()}{one()}|{one()})"])
        + draw.choice(["", "", "", "+", "*", "{2}", "{1,3}", "{0,3}", "?"])
        for _ in range(draw.randrange(2, 6))
    ]
    return f"^{''.join(parts)}{draw.choice(['$', ''])}"


def refused(compiled: CompiledGrammar, walks: int) -> list[int]:
    """Tokens of masks along random walks that the matcher refuses."""
    wrong = []
    for seed in range(walks):
        matcher, draw = compiled.matcher(), random.Random(seed)
        for _ in range(10):
            free = [token for token in next_tokens(matcher) if token not in STOPS]
            for token in free:
                if matcher.accept(token):
                    matcher.rollback(1)
                else:
                    wrong.append(token)
            if not free or not matcher.accept(draw.choice(free)):
                break
    return wrong


def specs(pattern: str) -> list[GrammarSpec]:
    schema = {"type": "string", "pattern": pattern}
    return [GrammarSpec.from_request({"json": schema}), GrammarSpec("regex", pattern)]


def check(backend: Any, patterns: list[str]) -> None:
    for pattern in patterns:
        for spec in specs(pattern):
            assert not refused(backend.compile(spec), 3), spec


def some_random(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [random_pattern(draw) for _ in range(count)]


def test_xgrammar_takes_every_token_of_its_masks(xgrammar: XGrammarBackend) -> None:
    check(xgrammar, [*PATTERNS, *some_random(1, 40)])


def test_llguidance_takes_every_token_of_its_masks(llguidance: LLGuidanceBackend) -> None:
    check(llguidance, [*PATTERNS, *some_random(2, 20)])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_xgrammar_takes_every_token_under_many_patterns(
    xgrammar: XGrammarBackend, seed: int
) -> None:
    check(xgrammar, some_random(100 + seed, 300))


@pytest.mark.parametrize("pattern", ["^.+.json$", r"^(\S\S)*[^0-9]\S$", "^a(..|x).x$"])
def test_the_library_needs_this_care(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Should this fail, XGrammar reads the patterns right as they are written everywhere else."""

    def usual(tree: Regex) -> str:
        text = regex_text(tree).replace("){0,}", ")*").replace("){1,}", ")+")
        return text.replace("){1,1}", ")")

    monkeypatch.setattr(schema_xgrammar, "with_copies", lambda tree: tree)
    monkeypatch.setattr(schema_writer, "regex_text", usual)
    assert refused(make_backend("xgrammar", tokenizer).compile(specs(pattern)[0]), 9)
